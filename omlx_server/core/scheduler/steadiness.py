"""When a look at the memory can be left out: it was enough for more steps than one, and nobody has
come or gone since. Pure; owned by the scheduler."""

from omlx_server.core.scheduler.queues import SequenceQueues

AHEAD = 32
"""For so many more tokens of each row memory is looked at in advance."""


class Steadiness:
    """What was found at the last look at the memory."""

    def __init__(self, queues: SequenceQueues) -> None:
        self._queues = queues
        self._left = 0
        self._seen = self._here

    def looked(self, tokens: int) -> None:
        """Note a look: memory is enough for so many more tokens of each row."""
        self._left, self._seen = tokens, self._here

    def fed(self, tokens: int) -> None:
        """Note a step that feeds so many tokens at most to each row."""
        self._left -= tokens

    @property
    def holds(self) -> bool:
        """Whether the next step needs no look: it only decodes, and memory is enough for it."""
        return self._left > 0 and not self._queues.active and self._seen == self._here

    @property
    def _here(self) -> tuple[int, int, int]:
        """Who is here. A prompt makes rows only after it was active for a step."""
        queues = self._queues
        return len(queues.running), len(queues.waiting), queues.queued
