"""What is published of responses, as the tests of this folder ask it."""

from tests.api.published.packages import judged
from tests.api.published.shapes import compaction, item_list, response
from tests.api.published.shapes import response_event as event

__all__ = ["compaction", "event", "item_list", "judged", "response"]
