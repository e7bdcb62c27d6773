"""Codes texts as the `encrypted_content` of items, which clients store and send back unread.

Reasoning is encoded only, as its item holds the same text in the open. Summaries of compactions are
authenticated with the client's API key as well; without API keys only damage is found.
"""

import base64
import hmac

from omlx_server.errors import BadRequest

_REASONING = "omlx1."
_PREFIX = "omlxc1."
_MAC = 32  # bytes of a SHA-256


def seal_reasoning(text: str) -> str:
    return _REASONING + base64.urlsafe_b64encode(text.encode(errors="replace")).decode()


def unseal_reasoning(sealed: str) -> str:
    """Return the text; "" if it is damaged or from another server."""
    if not sealed.startswith(_REASONING):
        return ""
    try:
        return base64.b64decode(sealed[len(_REASONING) :], altchars=b"-_", validate=True).decode()
    except ValueError:
        return ""


class Seals:
    def __init__(self, key: bytes) -> None:
        self._key = key

    def seal(self, text: str) -> str:
        data = text.encode(errors="replace")
        return _PREFIX + base64.urlsafe_b64encode(self._mac(data) + data).decode()

    def check(self, sealed: str, param: str) -> None:
        """Raise BadRequest if `sealed` is damaged or was sealed with another key."""
        whole = _decoded(sealed)
        if whole is None or not hmac.compare_digest(self._mac(whole[_MAC:]), whole[:_MAC]):
            raise BadRequest(
                "a compaction can't be read: it is damaged, or was made with another API key or by "
                "another server",
                param=param,
            )

    def _mac(self, data: bytes) -> bytes:
        return hmac.digest(self._key, b"compaction\0" + data, "sha256")


def text_of(sealed: str) -> str:
    """Return the text of a checked summary."""
    whole = _decoded(sealed)
    return "" if whole is None else whole[_MAC:].decode(errors="replace")


def _decoded(sealed: str) -> bytes | None:
    """Return the MAC and the text; None if malformed."""
    try:
        whole = base64.b64decode(sealed.removeprefix(_PREFIX), altchars=b"-_", validate=True)
    except ValueError:
        return None
    again = _PREFIX + base64.urlsafe_b64encode(whole).decode()
    return whole if again == sealed and len(whole) >= _MAC else None
