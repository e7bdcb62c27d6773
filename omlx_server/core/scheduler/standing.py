"""What each request waits for, in a line: for the log, when nothing moves. Pure; mlx thread."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from omlx_server.core.prefix_cache.prefix_cache import PrefixCache
from omlx_server.core.request import RequestId
from omlx_server.core.scheduler.admission import AtWork, Pressure
from omlx_server.core.scheduler.limits import Limits
from omlx_server.core.scheduler.queues import Roster
from omlx_server.core.scheduler.sequence import Prefill, Sequence


class Awaited(StrEnum):
    """What has to come first."""

    BLOCK = "a block that another prompt computes"
    COLD = "the cold tier"
    ROWS = "rows"
    MEMORY = "memory"
    TURN = "its turn"
    STEP = "a step"


@dataclass(frozen=True, slots=True)
class Standing:
    """Where choices of one request are, and what they wait for. `prompt` are all tokens that are to
    be computed before the next one is sampled, `computed` of them are."""

    request: RequestId
    place: str
    choices: int
    prompt: int
    computed: int
    output: int
    awaited: Awaited
    arrived: float

    def line(self, now: float) -> str:
        """Without anything of the prompt itself."""
        return (
            f"{self.request} is {self.place}, of {now - self.arrived:.1f} s: {self.prompt} tokens "
            f"to read, {self.computed} computed, {self.choices} choices, {self.output} tokens "
            f"written, waits for {self.awaited}"
        )


class Standings:
    """Looks at a scheduler's own roster. Whether memory is short is asked as for a step, so blocks
    that nobody needs may go."""

    def __init__(
        self, roster: Roster, cache: PrefixCache, pressure: Pressure, limits: Limits
    ) -> None:
        self._roster = roster
        self._cache = cache
        self._pressure = pressure
        self._limits = limits

    def all(self, now: float) -> Iterator[Standing]:
        """Of everybody, in the order in which they were queued."""
        roster = self._roster
        for prefill in roster.waiting:
            yield _of_prefill(prefill, "waiting", self._awaited(prefill, now))
        for prefill in roster.active:
            yield _of_prefill(prefill, "active", Awaited.STEP)
        for place, rows in (
            ("running", roster.running),
            ("finishing", roster.finishing),
            ("preempted", roster.preempted),
        ):
            for row in rows.values():
                yield _of_row(row, place)

    def _awaited(self, prefill: Prefill, now: float) -> Awaited:
        if prefill.ticket.awaits_cold:
            return Awaited.COLD
        if self._cache.must_wait(prefill.ticket):
            return Awaited.BLOCK
        roster = self._roster
        if not roster.has_rows_for(prefill, self._limits.max_batch_size):
            return Awaited.ROWS
        others = [other.ticket for other in roster.waiting if other is not prefill]
        work = AtWork(roster.running.values(), roster.active, others)
        fits = self._pressure.lets_in(prefill, work, now)
        return Awaited.TURN if fits else Awaited.MEMORY


def _of_prefill(prefill: Prefill, place: str, awaited: Awaited) -> Standing:
    request = prefill.request
    return Standing(
        request.id,
        place,
        len(prefill.sequences),
        prefill.target,
        prefill.computed,
        len(prefill.sequences[0].output),
        awaited,
        request.arrived,
    )


def _of_row(row: Sequence, place: str) -> Standing:
    request, prompt = row.request, len(row.request.tokens)
    return Standing(
        request.id, place, 1, prompt, row.fed, len(row.output), Awaited.STEP, request.arrived
    )
