"""Seals a summary as the `encrypted_content` of a compaction item, which clients pass on unread.

The text is encoded and authenticated, not encrypted: it was made of a conversation that the client
itself has sent. The server refuses a text that was sealed for another API key, also after a
restart. Without API keys all clients share one key, and only damage is found.
"""

import base64
import hmac

from omlx_server.errors import BadRequest

_PREFIX = "omlxc1."
_MAC = 32  # bytes of a SHA-256


class Seals:
    """Seals texts with the API key of one client, and checks them."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def seal(self, text: str) -> str:
        data = text.encode(errors="replace")
        return _PREFIX + base64.urlsafe_b64encode(self._mac(data) + data).decode()

    def check(self, sealed: str, param: str) -> None:
        """Raises BadRequest where a text is damaged, or was not sealed here with this key."""
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
    """The text in `sealed`, which `Seals.check` must have checked; "" if it is not decodable."""
    whole = _decoded(sealed)
    return "" if whole is None else whole[_MAC:].decode(errors="replace")


def _decoded(sealed: str) -> bytes | None:
    """The MAC and the text in `sealed`; None where it has another form than `seal` gives."""
    try:
        whole = base64.b64decode(sealed.removeprefix(_PREFIX), altchars=b"-_", validate=True)
    except ValueError:
        return None
    again = _PREFIX + base64.urlsafe_b64encode(whole).decode()
    return whole if again == sealed and len(whole) >= _MAC else None
