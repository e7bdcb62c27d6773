"""A pretend device for the scheduler: it holds rows and prefills as the runner would.

The token that a row samples is a fixed function of its context, so whatever the batch does, each
request has one right answer. Every rule that the runner relies on is asserted here.
"""

from dataclasses import dataclass, field

from omlx_server.core.request import (
    FinishReason,
    Request,
    RequestId,
    SampledRow,
    SamplingParams,
    TokenEvent,
)
from omlx_server.core.scheduler import Limits, Scheduler
from omlx_server.core.step import SequenceId, Step, StepResult

VOCAB = 7
STOP = 6


def next_token(context: tuple[int, ...], choice: int) -> int:
    """What the pretend model says after `context`."""
    return (sum(context) * 31 + len(context) * 7 + choice) % VOCAB


def right_answer(request: Request, choice: int) -> tuple[list[int], FinishReason]:
    context, output = request.tokens, list[int]()
    while len(output) < request.sampling.max_tokens:
        token = next_token((*context, *output), choice)
        if token in request.sampling.stop_ids and len(output) >= request.sampling.min_tokens:
            return output, FinishReason.STOP
        output.append(token)
    return output, FinishReason.LENGTH


def make_request(name: str, length: int, max_tokens: int, n: int = 1, **changes: float) -> Request:
    tokens = tuple((ord(name[-1]) + i) % VOCAB for i in range(length))
    sampling = SamplingParams(max_tokens=max_tokens, stop_ids=frozenset({STOP}))
    return Request(RequestId(name), tokens, sampling, n=n, **changes)  # type: ignore[arg-type]


@dataclass
class Device:
    """Rows that decode, and how far each prefill is."""

    limits: Limits
    rows: dict[SequenceId, tuple[int, ...]] = field(default_factory=dict)
    prefills: dict[SequenceId, int] = field(default_factory=dict)

    def execute(self, step: Step) -> StepResult:
        for id in step.drops:
            self.rows.pop(id, None)
            self.prefills.pop(id, None)
        assert set(step.decodes) == set(self.rows), "the scheduler's rows are not the device's"
        sampled = {}
        for id, context in self.rows.items():
            token = next_token(context, id.choice)
            self.rows[id] = (*context, token)
            sampled[id] = SampledRow(token)
        self._prefill(step)
        assert len(self.rows) + len(self.prefills) <= self.limits.max_batch_size
        return StepResult(sampled)

    def _prefill(self, step: Step) -> None:
        grid = self.limits.prefill_chunk_tokens
        budget = grid if step.decodes else self.limits.max_batched_tokens
        assert step.prefill_tokens <= max(budget, grid)
        assert sum(not chunk.joins for chunk in step.chunks) <= 1, "two unfinished chunks"
        for chunk in step.chunks:
            assert chunk.start == self.prefills.pop(chunk.prefill, 0), "a gap in a prefill"
            stop = chunk.start + len(chunk.tokens)
            assert len(chunk.tokens) <= grid
            if not chunk.joins:
                assert stop % grid == 0, "a chunk ends off the grid"
                self.prefills[chunk.prefill] = stop
            for join in chunk.joins:
                assert stop == len(join.context) - 1, "a row joins before its prompt is computed"
                assert join.id not in self.rows
                self.rows[join.id] = join.context


class Run:
    """A scheduler, its device and what came out, one step ahead like the engine."""

    def __init__(self, limits: Limits) -> None:
        self.scheduler = Scheduler(limits)
        self.device = Device(limits)
        self.now = 0.0
        self.outputs: dict[tuple[str, int], list[int]] = {}
        self.finishes: dict[tuple[str, int], FinishReason] = {}
        self.chunk_log: list[tuple[str, ...]] = []
        self._ahead: StepResult | None = None

    def step(self, seconds: float = 1.0) -> bool:
        """One turn of the engine. False when nothing was left to do."""
        self.now += seconds
        self.note(self.scheduler.expire(self.now))
        step = self.scheduler.schedule(self.now)
        self.scheduler.check_invariants()
        result = self.device.execute(step) if step else None
        self.chunk_log.append(tuple(c.prefill.request for c in step.chunks) if step else ())
        if self._ahead:
            self.note(self.scheduler.update(self._ahead))
        self._ahead = result
        if step and step.chunks and result:
            self.note(self.scheduler.update(result))
            self._ahead = None
        self.scheduler.check_invariants()
        return step is not None or self._ahead is not None

    def lose_everything(self) -> None:
        """The device forgets all: what the engine does when a step has failed."""
        self._ahead = None
        self.scheduler.restart()
        self.device = Device(self.device.limits)

    def finish(self, limit: int = 100_000) -> None:
        for _ in range(limit):
            if not self.step() and not self.scheduler.has_work:
                return
        raise AssertionError("the scheduler does not come to an end")

    def note(self, events: list[TokenEvent]) -> None:
        for event in events:
            key = (event.request_id, event.index)
            assert key not in self.finishes, "a token after the end"
            if event.token is not None:
                self.outputs.setdefault(key, []).append(event.token)
            if event.finish:
                self.finishes[key] = event.finish
