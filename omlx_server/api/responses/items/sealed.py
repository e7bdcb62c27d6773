"""Reasoning as a text that clients carry along unread, in `encrypted_content`.

Clients that keep nothing here send it back, so that a model which calls tools remembers why. It
holds what the reasoning item shows openly anyway, so it is encoded, not encrypted.
"""

import base64
import binascii

_PREFIX = "omlx1."


def seal(text: str) -> str:
    return _PREFIX + base64.urlsafe_b64encode(text.encode(errors="replace")).decode()


def unseal(sealed: str) -> str:
    """The text; empty where somebody else has sealed it."""
    if not sealed.startswith(_PREFIX):
        return ""
    try:
        return base64.b64decode(sealed[len(_PREFIX) :], altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        return ""
