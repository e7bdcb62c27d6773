"""Tells when a look at the memory can be skipped: it sufficed, and nobody came or went. Pure."""

from omlx_server.core.scheduler.queues import SequenceQueues

AHEAD = 32
"""The number of tokens per row for which memory is checked in advance."""


class Steadiness:
    def __init__(self, queues: SequenceQueues) -> None:
        self._queues = queues
        self._left = 0
        self._seen = self._here

    def note_look(self, tokens: int) -> None:
        self._left, self._seen = tokens, self._here

    def note_fed(self, tokens: int) -> None:
        self._left -= tokens

    @property
    def holds(self) -> bool:
        """Whether the next step only decodes, and memory is enough."""
        return self._left > 0 and not self._queues.active and self._seen == self._here

    @property
    def _here(self) -> tuple[int, int, int]:
        queues = self._queues
        return len(queues.running), len(queues.waiting), queues.queued
