"""The order of prompts. Pure; times in seconds.

Clients and their conversations have virtual times: the device seconds of their work. The order is

    1. by priority class
    2. urgent prompts, by the time promised for their first token: they get half of the time
    3. by the virtual time of their client
    4. of one client, by the virtual time of their conversation after its next turn
    5. of one conversation, by `due`: when they came, plus `_STRETCH` times their predicted work
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from omlx_server.core.clients import Owner, VirtualTimes
from omlx_server.core.request import Request
from omlx_server.core.scheduler.limits import SchedulerLimits
from omlx_server.core.scheduler.predictions import TURN_SECONDS, Predictions
from omlx_server.core.scheduler.sequence import PrefillState
from omlx_server.core.scheduler.sequence import Sequence as Row
from omlx_server.core.step import Chunk

SIZES = ("short", "medium", "long")
# The most chunks of a short and of a medium prompt.
_SHORT_CHUNKS, _MEDIUM_CHUNKS = 1, 8
# A prompt may be passed by its owner's others for so many times its own work.
_STRETCH = 8.0
# The promised longest wait: so many times the work before, and so many seconds.
_PROMISE_FACTOR, _PROMISE_EXTRA_SECONDS = 3.0, 5.0
# A prompt is urgent when so many times the work up to it, and seconds, just fit.
_URGENT_FACTOR, _URGENT_EXTRA_SECONDS = 2.0, 1.5
_URGENT_SHARE = 0.5
URGENT_PART = 0.75
"""The part of the device that a model with an urgent prompt gets beside others without one."""
# Steps with chunks that may be unread while the next is planned.
_MOST_UNREAD = 2


class TimeShare:
    """Keeps a `share` (0 to below 1) of the time for one side. Each second of the other makes a
    debt of share / (1 - share) seconds, bounded by its last turn."""

    def __init__(self, share: float) -> None:
        self._debt = 0.0
        self.change(share)

    def change(self, share: float) -> None:
        self._debt_per_second = share / (1.0 - share)

    def serve_others(self, seconds: float) -> None:
        if seconds <= 0:
            return
        most = seconds * max(1.0, self._debt_per_second)
        self._debt = min(self._debt + seconds * self._debt_per_second, most)

    def serve(self, seconds: float) -> None:
        self._debt = max(0.0, self._debt - max(0.0, seconds))

    def forgive(self) -> None:
        self._debt = 0.0

    @property
    def is_owed(self) -> bool:
        return self._debt > 0.0


@dataclass(frozen=True, slots=True)
class _PlannedStep:
    """A step whose time is not charged yet: to its rows, and to the first row of its `prompts`."""

    rows: Sequence[Row] = ()
    prompts: Sequence[Row] = ()
    chunks: tuple[Chunk, ...] = ()


class PrefillOrder:
    """Orders prompts, promises when their first tokens come, and charges owners."""

    def __init__(self, limits: SchedulerLimits) -> None:
        self._limits = limits
        self.predictions = Predictions(limits)
        self._decoding = TimeShare(limits.decode_share)
        self._urgency = TimeShare(_URGENT_SHARE)
        self._times = VirtualTimes()
        self._planned: list[_PlannedStep] = []  # with chunks under way; the newest last
        self._step_began = 0.0
        self._chunk_seconds = 0.0  # of chunks, since the step began
        self.urgent_from = math.inf
        """From when a prompt is urgent, as was seen when it last put any into order."""
        self.is_empty = True
        """Whether no prompt was there when it last put any into order."""

    def change(self, limits: SchedulerLimits) -> None:
        self._limits = self.predictions.limits = limits
        self._decoding.change(limits.decode_share)

    def set_part(self, part: float, away: float = 0.0) -> None:
        """Set this model's part of the device, which was with others for `away` seconds."""
        self.predictions.device_part = part
        self._step_began += away

    def begin_step(self, now: float) -> None:
        """Charge the time since the last step to its rows."""
        rows = self._planned[-1].rows if self._planned else ()
        seconds = now - self._step_began - self._chunk_seconds
        if rows and seconds > 0:
            self._decoding.serve(seconds)
            self._charge_rows(rows, seconds)
            self.predictions.note_decode(seconds, len(rows))
        self._step_began, self._chunk_seconds = now, 0.0

    def note_plan(
        self, rows: Sequence[Row], prompts: Sequence[PrefillState], chunks: Sequence[Chunk] = ()
    ) -> None:
        prompt_rows = [prefill.sequences[0] for prefill in prompts]
        unread = [step for step in self._planned if step.chunks][-_MOST_UNREAD:]
        self._planned = [*unread, _PlannedStep(rows, prompt_rows, tuple(chunks))]
        if chunks:
            seconds = self.predictions.step_seconds(chunks)
            if any(prefill.is_urgent for prefill in prompts):
                self._urgency.serve(seconds)
            else:
                self._urgency.serve_others(seconds)
        if not rows:
            self._decoding.forgive()

    def charge_chunks(self, chunks: tuple[Chunk, ...], seconds: float) -> None:
        [step] = [step for step in self._planned if step.chunks == chunks][-1:]
        if step is not self._planned[-1]:  # whose rows are charged when the next one begins
            self._planned.remove(step)
        self._chunk_seconds += seconds
        self.predictions.pace.note_chunks(seconds, chunks)
        if step.rows:
            self._decoding.serve_others(seconds)
        tokens = [len(chunk.tokens) for chunk in chunks] or [1] * len(step.prompts)
        token_seconds = max(0.0, seconds) / max(1, sum(tokens))
        counted = zip(step.prompts, tokens, strict=True)
        self._charge([(row, token_seconds * count) for row, count in counted])

    def _charge_rows(self, rows: Sequence[Row], seconds: float) -> None:
        # Half of the time is shared evenly, half by the tokens that each row attends to.
        row_seconds = seconds / 2 / len(rows)
        token_seconds = seconds / 2 / max(1, sum([row.fed for row in rows]))
        self._charge([(row, row_seconds + token_seconds * row.fed) for row in rows])

    def _charge(self, served: Sequence[tuple[Row, float]]) -> None:
        owner_seconds = dict[Owner, float]()
        for row, seconds in served:
            request = row.request
            owner = request.owner, request.conversation  # `owner_path`, without a call for each row
            owner_seconds[owner] = owner_seconds.get(owner, 0.0) + seconds
        for path, seconds in owner_seconds.items():
            self._times.charge(path, seconds)

    def note_no_room(self, prefill: PrefillState, seconds: float) -> None:
        # Its wait counts as time that it had, so that an urgent one may pass it.
        if not prefill.is_urgent:
            self._urgency.serve_others(seconds)

    @property
    def rows_come_first(self) -> bool:
        return self._decoding.is_owed

    def in_order(self, prefills: Collection[PrefillState], now: float) -> list[PrefillState]:
        """Return prompts in their order, once new ones have a promise and late ones are urgent."""
        self.is_empty = not prefills
        if not self._limits.fair:
            return sorted(prefills, key=lambda p: (p.request.priority, p.request.arrived, p.order))
        rows = self._planned[-1].rows if self._planned else ()
        requests = [p.request for p in prefills] + [row.request for row in rows]
        self._times.settle({request.owner_path for request in requests})
        for prefill in prefills:
            self._note_new(prefill, prefills, now)
        self._mark_urgent(prefills, now)
        by_due = sorted(prefills, key=lambda p: (self.due(p), p.order))
        return sorted(by_due, key=self._sort_keys(by_due).__getitem__)

    def _note_new(
        self, prefill: PrefillState, prefills: Collection[PrefillState], now: float
    ) -> None:
        first = prefill.sequences[0]
        if first.virtual_arrival is None:
            virtual_arrival = self._times.rank(first.request.owner_path)[-1]
            for sequence in prefill.sequences:
                sequence.virtual_arrival = virtual_arrival
        if prefill.promised_by is None and self.predictions.are_known:
            prefill.promise_first_token(now + self.longest_wait(prefill.request, prefills))

    def longest_wait(self, request: Request, prefills: Collection[PrefillState]) -> float:
        """Return the seconds to promise for a first token, 0 where unknown."""
        if not self.predictions.are_known:
            return 0.0
        return _PROMISE_FACTOR * self.backlog(request, prefills) + _PROMISE_EXTRA_SECONDS

    def backlog(self, request: Request, prefills: Collection[PrefillState]) -> float:
        """Return the seconds to all first tokens up to this class."""
        before = (p for p in prefills if p.request.priority <= request.priority)
        return sum(map(self.predictions.first_token_seconds, before)) / self.predictions.device_part

    def _mark_urgent(self, prefills: Collection[PrefillState], now: float) -> None:
        # Mark prompts whose promise breaks unless they and all promised earlier begin now.
        promises = [
            (p.request.priority, p.promised_by, p) for p in prefills if p.promised_by is not None
        ]
        promises.sort(key=lambda promise: promise[:2])
        self.urgent_from, work_seconds = math.inf, 0.0
        latest_urgent = dict[int, float]()  # by priority: the latest promise that is in danger
        for priority, promised_by, prefill in promises:
            work_seconds += self.predictions.first_token_seconds(prefill)
            start = self._latest_start(work_seconds, promised_by)
            self.urgent_from = min(self.urgent_from, start)
            if start <= now:
                latest_urgent[priority] = promised_by
        for priority, promised_by, prefill in promises:
            prefill.is_urgent |= promised_by <= latest_urgent.get(priority, -math.inf)

    def _sort_keys(self, prefills: Sequence[PrefillState]) -> dict[PrefillState, tuple[float, ...]]:
        times = dict[tuple[int, Owner], tuple[float, float]]()  # client's, conversation's
        keys = dict[PrefillState, tuple[float, ...]]()
        for prefill in prefills:
            priority, owner = prefill.request.priority, prefill.request.owner_path
            if (priority, owner) not in times:
                client, conversation = self._times.rank(owner)
                turn = min(self.predictions.seconds_left(prefill), TURN_SECONDS)
                times[priority, owner] = client, conversation + turn
            keys[prefill] = priority, 1, *times[priority, owner]
            if prefill.is_urgent and prefill.promised_by is not None:
                # Before the others (0), or behind them (2) once urgent ones had their half.
                keys[prefill] = priority, 0 if self._urgency.is_owed else 2, prefill.promised_by
        return keys

    def can_restart(self, prefill: PrefillState, now: float) -> bool:
        """Return whether a preempted prompt could still keep its promise."""
        if prefill.promised_by is None:
            return True
        work_seconds = self.predictions.first_token_seconds(prefill, restarts=True)
        return self._latest_start(work_seconds, prefill.promised_by) > now

    def _latest_start(self, work_seconds: float, promised_by: float) -> float:
        device_seconds = _URGENT_FACTOR * work_seconds + _URGENT_EXTRA_SECONDS
        return promised_by - device_seconds / max(self.predictions.device_part, URGENT_PART)

    def due(self, work: PrefillState | Row) -> float:
        """Return the sort key among one owner's work: seconds of its virtual time."""
        if isinstance(work, Row):
            return (work.virtual_arrival or 0.0) + _STRETCH * self.predictions.answer_seconds(work)
        first = work.sequences[0]
        seconds = self.predictions.seconds_since_admission(work)
        return (first.virtual_arrival or 0.0) + _STRETCH * seconds

    def lead_seconds(self, request: Request, other: Request) -> float:
        return self._times.lead(request.owner_path, other.owner_path)

    def size(self, tokens: int) -> int:
        """Return the index in SIZES of a prompt of so many tokens."""
        chunk = self._limits.prefill_chunk_tokens
        return (tokens > _SHORT_CHUNKS * chunk) + (tokens > _MEDIUM_CHUNKS * chunk)
