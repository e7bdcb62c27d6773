"""Encodes reasoning as the `encrypted_content` of an item, which clients pass on unread.

Clients that do not let this server store their responses send it back with the next request, so
that a model that calls tools remembers why. The text is encoded, not encrypted, as the reasoning
item holds the same text in the open.
"""

import base64

_PREFIX = "omlx1."


def seal(text: str) -> str:
    return _PREFIX + base64.urlsafe_b64encode(text.encode(errors="replace")).decode()


def unseal(sealed: str) -> str:
    """The text in `sealed`; "" where this server did not make it, or it is damaged."""
    if not sealed.startswith(_PREFIX):
        return ""
    try:
        return base64.b64decode(sealed[len(_PREFIX) :], altchars=b"-_", validate=True).decode()
    except ValueError:
        return ""
