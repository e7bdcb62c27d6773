"""The loop over one model's instance: requests in, steps, events out. Lives on the mlx thread.

One turn, in order:

    1. when due: check memory, end requests past their deadline, report
    2. schedule the next step and launch it
    3. take the tokens of the step before, and send them

Tokens that will probably be followed by drafts are read before the next step is planned.
"""

import logging
import os
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from omlx_server import clock
from omlx_server.core.crash import MOST_CRASHES, Crash, Crashes, guarded
from omlx_server.core.device_errors import fault_of
from omlx_server.core.experts.counts import ExpertCounts
from omlx_server.core.interval import REPORT_SECONDS, Interval
from omlx_server.core.prefix_cache.report import CacheReport
from omlx_server.core.request import Admitted, FinishReason, Request, RequestId, TokenEvent
from omlx_server.core.scheduler.limits import Load
from omlx_server.core.scheduler.order import PrefillOrder
from omlx_server.core.scheduler.standings import Standing, WaitReason
from omlx_server.core.scheduler.watchdog import Excuse, Stalls, StallVerdict, Watchdog
from omlx_server.core.speculation.methods import DraftCounts
from omlx_server.core.step import SequenceId, Step
from omlx_server.engine.messages import (
    Accepted,
    Counted,
    EngineState,
    ImageCounts,
    OpenRequest,
    Outbound,
    Status,
    end_events,
)
from omlx_server.engine.model_instance import ModelInstance
from omlx_server.engine.pipeline import Pipeline
from omlx_server.engine.recovery import StepRecovery

_log = logging.getLogger(__name__)

_RESTARTED = "the engine had to be restarted"
# Check invariants at rest; a million blocks take a second.
_HAS_CHECKS = os.environ.get("OMLX_CHECKS") == "1"


class StepLoop:
    """Turns one `instance`. After the third crash within a minute the model stays FAILED."""

    def __init__(
        self,
        instance: ModelInstance,
        publish: Callable[[Sequence[Outbound]], None],
        clock: Callable[[], float] = clock.now,
    ) -> None:
        self.instance = instance
        self._recovery = StepRecovery(self, clock)
        self._pipeline = Pipeline(instance, self._report)
        self._publish = publish
        self._clock = clock
        self._unfinished: dict[RequestId, OpenRequest] = {}
        self._admitted: Sequence[Admitted] = ()
        self._earlier_counters = CacheReport()  # counters of caches before the latest restart
        self._crashes = Crashes()
        self._wants_turn = False
        self._last_step_computes = False
        self._report_interval = Interval(REPORT_SECONDS)
        self._watchdog = Watchdog()
        self._stalls = Stalls()
        self.beat()

    @property
    def is_at_rest(self) -> bool:
        """Whether there is nothing to do before a message comes."""
        return self._pipeline.is_empty and not self._wants_turn

    @property
    def has_work(self) -> bool:
        """Whether there are requests, or a step whose tokens are not read."""
        return self.instance.has_work or not self._pipeline.is_empty

    @property
    def is_moving(self) -> bool:
        """Whether the device works for it, or its last step had something to compute."""
        return not self._pipeline.is_empty or (self._last_step_computes and self.instance.has_work)

    @property
    def wants_a_turn(self) -> bool:
        return self.has_work or self._wants_turn

    @property
    def clients(self) -> set[bytes]:
        return set() if self.failed else self.instance.scheduler.queues.clients

    @property
    def order(self) -> PrefillOrder:
        return self.instance.scheduler.prefill_order

    def ask_for_turn(self) -> None:
        """Ask for a turn: waiting requests may go on."""
        self._wants_turn = True

    @property
    def failed(self) -> bool:
        return self.status.state is EngineState.FAILED

    def admit(self, request: Request) -> None:
        """Queue or reject a request, and publish which."""
        if self.failed:  # its client did not know yet
            self._publish(end_events(request, self.status.problem))
            return
        self._wants_turn = True
        self._survive_crash_of(lambda: self._admit(request))

    def cancel(self, request_id: RequestId, index: int | None) -> None:
        self._wants_turn = True
        self._survive_crash_of(lambda: self.instance.scheduler.cancel(request_id, index))
        self._note_end(request_id, index)

    def turn(self, *, is_only_model: bool, has_jobs: bool = False) -> None:
        """Run a step. `is_only_model`: no other works; `has_jobs`: the thread has other work."""
        self._survive_crash_of(lambda: self._turn(is_only_model, has_jobs))

    def watch(self, *, others: bool, loading: bool) -> None:
        """Restart, or end all requests, when they wait for nothing. `others`: another model or
        job works; `loading`: a model comes or goes."""
        if self.is_moving:
            self._watchdog.note_progress()
        elif not (self._unfinished or self.instance.has_work):
            self._watchdog.note_rest()
        elif loading:
            self._watchdog.note_pause()
        else:
            self._survive_crash_of(lambda: self._handle_standstill(others))

    def finish_ahead(self) -> None:
        """Finish the step that runs, before another model has the device."""
        if not self._pipeline.is_empty:
            self._survive_crash_of(lambda: self._run_step(None, is_only_model=True))

    def end(self, why: str) -> None:
        self._pipeline.clear()
        for open_request in list(self._unfinished.values()):
            guarded(self.instance.scheduler.cancel, open_request.request.id)
            self.send(open_request.end(FinishReason.ERROR, why))

    def beat(self) -> None:
        instance, now = self.instance, self._clock()
        self._report_interval.begin(now)
        instance.cache.index.order.note_time(now)
        self.status = Status(
            EngineState.READY,
            instance.scheduler.load,
            now,
            counted=self.tally(),
            live=max(instance.reserved, instance.runner.live_bytes) + instance.adapters.nbytes,
            oldest=instance.scheduler.oldest(),
            chunks=instance.chunks,
            adapters=instance.adapters.names,
        )

    def tally(self) -> Counted:
        instance, earlier = self.instance, self._earlier_counters
        cache = instance.cache.report()
        if earlier.queried_tokens:
            cache = cache.after(earlier)
        reliefs = Counter(instance.watch.guard.used) if instance.watch else Counter()
        speculation, loaded = instance.speculation, instance.runner.loaded
        vision, on_disk = loaded.vision, loaded.experts
        drafts = DraftCounts().after(speculation.counts) if speculation else DraftCounts()
        images = ImageCounts(vision.runs, vision.seconds) if vision is not None else ImageCounts()
        experts = ExpertCounts().after(on_disk.counts) if on_disk else ExpertCounts()
        return Counted(cache, reliefs, self._stalls, drafts, images, experts)

    # -- one turn ------------------------------------------------------------------------

    def _turn(self, is_only_model: bool, has_jobs: bool) -> None:
        instance, now = self.instance, self._clock()
        # Drafts probably follow the tokens of the step before: they are read first.
        if self._pipeline.is_ahead and instance.scheduler.awaits_tokens(now):
            self._run_and_recover(self._pipeline.take_ahead)
        instance.recall()
        is_check_due = self._report_interval.has_passed(now) or not instance.is_steady()
        if is_check_due:
            self._check_memory_and_deadlines(now)
        step = instance.scheduler.schedule(self._clock())
        if step is None and not is_check_due:  # the next turn may be in a second
            self._check_memory_and_deadlines(now)
        self._wants_turn = step is not None  # else all wait for the cold tier, which wakes us
        self._last_step_computes = step is not None and bool(step.decodes or step.chunks)
        self._run_step(step, is_only_model=is_only_model, has_jobs=has_jobs)
        if _HAS_CHECKS and self._pipeline.is_empty and not instance.has_work:
            instance.check_invariants()

    def _check_memory_and_deadlines(self, now: float) -> None:
        self.send(self.instance.scheduler.expire(now))
        self.send(self.instance.relieve(now))
        self.beat()

    def _admit(self, request: Request) -> None:
        # Noted first: should the scheduler crash on it, its client still gets an answer.
        self._unfinished[request.id] = OpenRequest(request, set(range(request.n)))
        self.instance.update_ledger()
        now, scheduler = self._clock(), self.instance.scheduler
        empty = end_events(request, "", FinishReason.STOP) if request.must_be_empty else []
        rejected = None if empty else scheduler.add(request)
        if rejected is not None:
            del self._unfinished[request.id]
        self._publish(
            [rejected or Accepted(request.id, scheduler.promise_first_token(request, now))]
        )
        self.send(empty)

    def _run_step(self, step: Step | None, *, is_only_model: bool, has_jobs: bool = False) -> None:
        """Nothing may hold its payloads afterwards: the account of memory would be wrong."""
        self._admitted = step.admitted if step is not None else ()
        verifies = step is not None and step.verifies
        run = partial(self._pipeline.run, step, is_only_model=is_only_model, has_jobs=has_jobs)
        self._run_and_recover(run, drafted=verifies)

    def _run_and_recover(self, work: Callable[[], None], *, drafted: bool = False) -> None:
        """Do work of a step. If it fails, sequences go on as far as they can."""
        crash = guarded(work)
        if isinstance(crash, Crash):
            self._pipeline.clear()
            if self.instance.ranks.are_several:  # they can't go on without the lost data
                self.fail_for_good(self.instance.ranks.fail(crash))
            else:
                self._recovery.recover(crash.error, drafted=drafted)
        else:  # the step may have admitted prompts without a token
            self._report(())

    def _report(self, events: Sequence[TokenEvent]) -> None:
        admitted, self._admitted = self._admitted, ()
        restored, self.instance.restored = self.instance.restored, []
        for reports in (admitted, restored):
            if reports:
                self._publish(reports)
        self.send(events)

    def send(self, events: Sequence[TokenEvent]) -> None:
        ends = [event for event in events if event.finish]
        for event in ends:
            if event.finish is FinishReason.MODEL_ERROR:
                _log.error("%s: the logits are not finite (NaN)", event.request_id)
            self._note_end(event.request_id, event.index)
        if ends and not self.failed:
            self.beat()  # an end is counted before its client sees it
        if events:
            self._watchdog.note_answer()
            self._publish(events)

    def _note_end(self, request_id: RequestId, index: int | None) -> None:
        """Note that a choice has ended, or with None all of its request."""
        open_request = self._unfinished.get(request_id)
        if open_request is None:
            return
        open_request.choices -= {index} if index is not None else open_request.choices.copy()
        if not open_request.choices:
            del self._unfinished[request_id]

    # -- when nothing moves --------------------------------------------------------------

    def _handle_standstill(self, others: bool) -> None:
        now = self._clock()
        standings = list[Standing]()

        def excuse() -> Excuse:  # asked only when patience ends; the log shows `standings`
            standings.extend(self.instance.scheduler.standings.all(now))
            awaited = {standing.waits_for for standing in standings}
            if others and WaitReason.MEMORY in awaited:
                return Excuse.OTHERS
            return Excuse.READS if WaitReason.COLD in awaited else Excuse.NONE

        verdict = self._watchdog.look(now, excuse)
        if verdict is StallVerdict.WAIT:
            return
        stood_seconds = self._watchdog.stalled_seconds
        self._log_standstill(standings, verdict, stood_seconds, now)
        self._wants_turn = True
        if verdict is StallVerdict.START_OVER:
            self.start_over_with_sequences()
        else:
            why = f"nothing had moved for {stood_seconds:.0f} s, nor after a new start"
            self._end_all_and_start_over(why)

    def _log_standstill(
        self, standings: Sequence[Standing], verdict: StallVerdict, seconds: float, now: float
    ) -> None:
        watch = self.instance.watch
        _log.error(
            "nothing has moved for %.0f s though %d requests wait (%s): %s",
            seconds,
            len(self._unfinished),
            "memory is not watched" if watch is None else watch.guard.ledger,
            verdict.value,
        )
        for standing in standings:
            _log.error("%s", standing.line(now))
        for id in self._unfinished.keys() - {standing.request for standing in standings}:
            _log.error("%s is nowhere", id)

    def start_over_with_sequences(self) -> None:
        """Restart with all sequences, output kept; end choices that are lost."""
        self._stalls += Stalls(restarted=1)
        self._keep_counters(self.tally().cache)
        kept_ids = self.instance.start_over_with_sequences()
        for request_id in {id.request for id in kept_ids} - self._unfinished.keys():
            self.instance.scheduler.cancel(request_id)
        for open_request in list(self._unfinished.values()):
            events = open_request.end(FinishReason.ERROR, "the engine had lost it")
            lost = [e for e in events if SequenceId(e.request_id, e.index) not in kept_ids]
            self.send(lost)

    def _keep_counters(self, report: CacheReport) -> None:
        # Its gauges begin anew, its counters go on.
        self._earlier_counters = CacheReport().after(report)

    def _end_all_and_start_over(self, why: str) -> None:
        self._stalls += Stalls(ended=1)
        self._keep_counters(self.tally().cache)
        self.end(why)
        self.instance.start_over()

    # -- when things go wrong ------------------------------------------------------------

    def _survive_crash_of(self, act: Callable[[], object]) -> None:
        crash = guarded(act)
        if isinstance(crash, Crash):
            self._pipeline.clear()
            self._wants_turn = True
            is_fault = fault_of(crash.error) is not None and not self.instance.ranks.are_several
            if is_fault and guarded(self._recovery.recover, crash.error) is None:
                return
            if not self._start_over_after_crash(crash):
                self.fail_for_good(f"the engine crashed {MOST_CRASHES} times")
                guarded(self.instance.release_memory)

    def fail_for_good(self, problem: str) -> None:
        now, counted = self._clock(), self.status.counted
        self.status = Status(EngineState.FAILED, Load(0, 0, 0), now, problem, counted)
        self.end(problem)

    def _start_over_after_crash(self, crash: Crash) -> bool:
        """End the requests that ran, and start over. Return False after too many crashes."""
        _log.critical("the engine loop crashed", exc_info=crash.error)
        now = self._clock()
        if self._crashes.are_too_many(now):
            return False
        waiting = guarded(self.instance.scheduler.queues.untouched_requests)  # did not run
        self._keep_counters(self.status.counted.cache)
        self.instance.start_over()
        for open_request in list(self._unfinished.values()):
            if isinstance(waiting, Crash) or open_request.request.id not in waiting:
                self.send(open_request.end(FinishReason.ERROR, _RESTARTED))
                continue
            refused = self.instance.scheduler.add(open_request.request)
            if refused is not None:  # limits are tighter than when it was accepted
                why = FinishReason.MEMORY if refused.no_room else FinishReason.ERROR
                self.send(open_request.end(why, refused.no_room or _RESTARTED))
        return True
