"""What is published of messages, as the tests of this folder ask it."""

from tests.api.published.shapes import message
from tests.api.published.shapes import message_event as event

__all__ = ["event", "message"]
