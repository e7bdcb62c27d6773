"""A summary as a text that clients carry along unread: the `encrypted_content` of a compaction.

It is encoded and authenticated, not encrypted: what it holds was made of a conversation that the
client itself has sent. What one API key has sealed no other can open, whoever restarts the server
in between; without API keys everybody has the same, and a damaged text is still told.
"""

import base64
import binascii
import hashlib
import hmac

from omlx_server.errors import BadRequest

_PREFIX = "omlxc1."
_MAC = hashlib.sha256().digest_size


class Seals:
    """Those of one client."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def seal(self, text: str) -> str:
        data = text.encode(errors="replace")
        return _PREFIX + base64.urlsafe_b64encode(self._mac(data) + data).decode()

    def check(self, sealed: str, param: str) -> None:
        """Raises BadRequest for what is damaged, or was sealed with another key or elsewhere."""
        whole = _decoded(sealed)
        if whole is None or not hmac.compare_digest(self._mac(whole[_MAC:]), whole[:_MAC]):
            raise BadRequest(
                "a compaction can't be read: it is damaged, or was made with another API key or by "
                "another server",
                param=param,
            )

    def _mac(self, data: bytes) -> bytes:
        return hmac.new(self._key, b"compaction\0" + data, hashlib.sha256).digest()


def text_of(sealed: str) -> str:
    """What was sealed. `Seals.check` comes first: of anything else it is empty."""
    whole = _decoded(sealed)
    return "" if whole is None else whole[_MAC:].decode(errors="replace")


def _decoded(sealed: str) -> bytes | None:
    """None for what was never sealed here. Of one content there is one text only."""
    try:
        whole = base64.b64decode(sealed.removeprefix(_PREFIX), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return None
    again = _PREFIX + base64.urlsafe_b64encode(whole).decode()
    return whole if again == sealed and len(whole) >= _MAC else None
