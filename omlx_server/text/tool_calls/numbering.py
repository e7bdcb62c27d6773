"""Gives the calls of one answer their indices and ids."""

import secrets
import string
from collections.abc import Callable

from omlx_server.text.parts import CallStart

_ALPHABET = string.ascii_letters + string.digits


def new_call_id() -> str:
    return f"call_{secrets.token_hex(12)}"


def short_call_id() -> str:
    """Return nine letters and digits, as templates of Mistral's models require."""
    return "".join(secrets.choice(_ALPHABET) for _ in range(9))


class Numbering:
    """The next index and id; `count` calls have begun."""

    def __init__(self, make_id: Callable[[], str] = new_call_id) -> None:
        self._make_id = make_id
        self.count = 0

    def start(self, name: str) -> CallStart:
        start = CallStart(self.count, self._make_id(), name)
        self.count += 1
        return start
