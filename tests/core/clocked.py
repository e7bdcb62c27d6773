"""The simulator with a clock of its own: reading and decoding take time, and the scheduler is told.

Decodes that are read a turn later took their time in the turn before, as on a device that is busy.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from omlx_server.core.blocks.block import CacheLayout
from omlx_server.core.prefix_cache.eviction import HotBudget
from omlx_server.core.request import Request, RequestId, TokenEvent
from omlx_server.core.scheduler.limits import SchedulerLimits
from omlx_server.core.step import Chunk, SequenceId, Step
from tests.core.simulator import KV, ROOMY, Device, Done, Made, Run


@dataclass(frozen=True)
class Pace:
    """Seconds: of a prompt's token, which takes so much longer for each one before it, and of a
    decode of any number of rows."""

    token: float = 0.01
    decode: float = 0.01
    depth: float = 0.0

    def of(self, chunk: Chunk) -> float:
        mean = (chunk.start + chunk.stop) / 2
        return len(chunk.tokens) * (self.token + self.depth * mean)


@dataclass
class _Timed(Device):
    """Notes how long the steps took since it was asked last."""

    pace: Pace = field(default_factory=Pace)
    decoding: float = 0.0
    reading: float = 0.0
    read: tuple[Chunk, ...] = ()
    given: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))

    def execute(self, step: Step) -> Done:
        if step.decodes:
            self.decoding += self.pace.decode
        for id in step.decodes:
            self.given[id.request] += self.pace.decode / len(step.decodes)
        return super().execute(step)

    def run_chunks(self, step: Step) -> list[Made]:
        self.read = step.chunks
        for chunk in step.chunks:
            self.reading += self.pace.of(chunk)
            self.given[chunk.prefill.request] += self.pace.of(chunk)
        return super().run_chunks(step)


class Clocked(Run):
    """`times` are those at which tokens were read, `chunks` how many steps with chunks had run by
    then; `decoding` and `reading` are the seconds that went to either."""

    def __init__(
        self,
        limits: SchedulerLimits,
        pace: Pace | None = None,
        layout: CacheLayout | None = None,
        memory: int | None = None,
        budget: HotBudget | None = None,
    ) -> None:
        super().__init__(limits, layout, budget or ROOMY, memory)
        self._timed = self.device = _Timed(limits, layout or KV, pace=pace or Pace())
        self.times: dict[tuple[str, int], list[float]] = {}
        self.chunks: dict[tuple[str, int], list[int]] = {}
        self.decoding = 0.0
        self.reading = 0.0
        self.chunks_run = 0
        self.sent: list[tuple[str, int]] = []
        self._owners: dict[str, bytes] = {}

    def send(self, request: Request) -> None:
        """Queue a request, which has to be taken."""
        assert self.scheduler.add(request) is None
        self.note_sent(request)

    def note_sent(self, request: Request) -> None:
        """Note that a request was taken."""
        self._owners[request.id] = request.owner
        self.sent += [(request.id, choice) for choice in range(request.n)]

    def tell_pace(self, tokens: int) -> None:
        """As if so many tokens of short prompts had been computed."""
        chunk = Chunk(SequenceId(RequestId("first"), 0), 0, (1,) * 80)
        predictions = self.scheduler.prefill_order.predictions
        for _ in range(tokens // 80):
            predictions.pace.note_chunks(self._timed.pace.of(chunk), [chunk])
        for _ in range(200):
            predictions.note_decode(self._timed.pace.decode, 1)

    def given(self, owner: bytes) -> float:
        """How many seconds went to an owner's sequences."""
        return sum(s for name, s in self._timed.given.items() if self._owners[name] == owner)

    def turn(self) -> bool:
        """A step, and the time that it takes. False when nothing was left to do."""
        more = self.step(0.0)
        timed = self._timed
        if timed.reading:
            self.scheduler.note_chunk_time(timed.read, timed.reading)
            self.chunks_run += 1
        self.now += timed.decoding + timed.reading
        self.decoding += timed.decoding
        self.reading += timed.reading
        timed.decoding = timed.reading = 0.0
        return more

    def finish_turns(self) -> None:
        """Until nothing is left."""
        while self.turn() or self.scheduler.has_work:
            pass
        self.check_kept()

    def note(self, events: Sequence[TokenEvent]) -> None:
        super().note(events)
        for event in events:
            if event.token is not None:
                key = event.request_id, event.index
                self.times.setdefault(key, []).append(self.now)
                self.chunks.setdefault(key, []).append(self.chunks_run)
