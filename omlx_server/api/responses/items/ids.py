"""Ids of responses and of their items, which repeat the random part of their response's id."""

import re
import secrets

_RESPONSE = re.compile(r"resp_[0-9a-f]{32}")
_ITEM = re.compile(r"[a-z]{1,8}_([0-9a-f]{32})[0-9a-f]{4}")


def new_response_id() -> str:
    """Return a new response id with 128 random bits."""
    return f"resp_{secrets.token_hex(16)}"


def is_response_id(text: str) -> bool:
    return _RESPONSE.fullmatch(text) is not None


def response_of(item_id: str) -> str | None:
    """Return the id of an item's response; None where this server made no such id."""
    match = _ITEM.fullmatch(item_id)
    return f"resp_{match[1]}" if match else None


class ItemIds:
    def __init__(self, response_id: str) -> None:
        self._stem = response_id.removeprefix("resp_")
        self._count = 0

    def next(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}_{self._stem}{self._count:04x}"
