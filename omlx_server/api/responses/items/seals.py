"""Codes texts as the `encrypted_content` of items, which clients store and send back unread.

Reasoning is encoded only, as its item holds the same text in the open. Summaries of compactions are
authenticated with the client's API key as well; without API keys only damage is found.
"""

import base64
import hmac

from omlx_server.errors import BadRequest

_REASONING_PREFIX = "omlx1."
_SUMMARY_PREFIX = "omlxc1."
_MAC_BYTES = 32  # of a SHA-256


def seal_reasoning(text: str) -> str:
    return _REASONING_PREFIX + base64.urlsafe_b64encode(text.encode(errors="replace")).decode()


def unseal_reasoning(sealed: str) -> str:
    """Return the text; "" if it is damaged or from another server."""
    if not sealed.startswith(_REASONING_PREFIX):
        return ""
    encoded = sealed.removeprefix(_REASONING_PREFIX)
    try:
        return base64.b64decode(encoded, altchars=b"-_", validate=True).decode()
    except ValueError:
        return ""


class SummarySeals:
    """Seals the summaries of compactions with one API key."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def seal(self, text: str) -> str:
        data = text.encode(errors="replace")
        return _SUMMARY_PREFIX + base64.urlsafe_b64encode(self._mac_of(data) + data).decode()

    def check(self, sealed: str, param: str) -> None:
        """Raise BadRequest if `sealed` is damaged or was sealed with another key."""
        mac, data = _decode(sealed)
        if not hmac.compare_digest(self._mac_of(data), mac):
            raise BadRequest(
                "a compaction can't be read: it is damaged, or was made with another API key or by "
                "another server",
                param=param,
            )

    def _mac_of(self, data: bytes) -> bytes:
        return hmac.digest(self._key, b"compaction\0" + data, "sha256")


def summary_text(sealed: str) -> str:
    """Return the text of a checked summary."""
    _, data = _decode(sealed)
    return data.decode(errors="replace")


def _decode(sealed: str) -> tuple[bytes, bytes]:
    """Return the MAC, which is empty if `sealed` is malformed, and the text."""
    encoded = sealed.removeprefix(_SUMMARY_PREFIX)
    try:
        decoded = base64.b64decode(encoded, altchars=b"-_", validate=True)
    except ValueError:
        return b"", b""
    # Other spellings of the same bytes are refused.
    canonical = _SUMMARY_PREFIX + base64.urlsafe_b64encode(decoded).decode()
    if sealed != canonical or len(decoded) < _MAC_BYTES:
        return b"", b""
    return decoded[:_MAC_BYTES], decoded[_MAC_BYTES:]
