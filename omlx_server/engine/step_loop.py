"""Turns one model's lane: requests in, a step at a time, events out. Lives on the mlx thread.

One turn, in order:

    1. end what is past its deadline
    2. schedule the next step and launch it
    3. read the step before it, which ran meanwhile, and send its tokens out

So the device is one step ahead of the host. A step with prefill chunks is waited for at once:
its length hides the host's work anyway, and newcomers then wait for one chunk, not for two. Where a
launch takes as long as the work (the CPU backend) so is a step that gives first tokens. While
other models are at work, every step is read in its own turn: the device works for one at a time.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from omlx_server.compute.hardware import device
from omlx_server.compute.runner import Launched
from omlx_server.core.guard import Crash, guarded
from omlx_server.core.memory.guard import Rung
from omlx_server.core.prefix_cache.report import CacheReport
from omlx_server.core.request import FinishReason, Request, RequestId, TokenEvent
from omlx_server.core.scheduler.limits import Load
from omlx_server.core.scheduler.standing import Awaited, Standing
from omlx_server.core.scheduler.watchdog import Excuse, Stalls, Verdict, Watchdog
from omlx_server.core.step import SequenceId, Step
from omlx_server.engine.crashes import MOST, Crashes
from omlx_server.engine.messages import Accepted, Counted, Outbound, State, Status, ended
from omlx_server.engine.model_instance import Lane
from omlx_server.errors import first_line

_log = logging.getLogger(__name__)

_RESTARTED = "the engine had to be restarted"


class Driver:
    """`publish` is called with the events of each turn. A crash of a turn is survived, not three
    within a minute: then `status` says FAILED and nothing turns any more."""

    def __init__(
        self,
        lane: Lane,
        publish: Callable[[Sequence[Outbound]], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.lane = lane
        self._publish = publish
        self._clock = clock
        self._unfinished: dict[RequestId, _Open] = {}
        self._before = CacheReport()  # counters of the caches before the lane had to start over
        self._crashes = Crashes()
        self._ahead: Launched | None = None
        self._busy = False
        self._computes = False
        self._watchdog = Watchdog()
        self._stalls = Stalls()
        self.beat()

    # -- what the engine asks ------------------------------------------------------------

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing is to do before a message comes: the last turn found no step, and none is
        out. (Requests that wait for the cold tier are woken by it.)"""
        return self._ahead is None and not self._busy

    @property
    def has_work(self) -> bool:
        """Whether there are requests, or a step is out."""
        return self.lane.has_work or self._ahead is not None

    @property
    def moves(self) -> bool:
        """Whether something is computed for its requests: the last turn launched it, or a step is
        out."""
        return self._ahead is not None or (self._computes and self.lane.has_work)

    @property
    def wants_a_turn(self) -> bool:
        return self.has_work or self._busy

    def look(self) -> None:
        """Somebody has asked the lane for something: the next turn tells what is there now."""
        self._busy = True

    @property
    def failed(self) -> bool:
        return self.status.state is State.FAILED

    def admit(self, request: Request) -> None:
        """Queue a request; the scheduler's word on it goes out."""
        if self.failed:  # its client had not heard of that
            self._publish(ended(request, self.status.problem))
            return
        self._busy = True
        self._guard(lambda: self._admit(request))

    def cancel(self, request_id: RequestId, index: int | None) -> None:
        """Forget a request, or one of its choices."""
        self._busy = True
        self._guard(lambda: self.lane.scheduler.cancel(request_id, index))
        self._close(request_id, index)

    def turn(self, *, alone: bool) -> None:
        """Plan, launch and read. `alone`: no other model is at work."""
        self._guard(lambda: self._turn(alone))

    def watch(self, *, others: bool, loading: bool) -> None:
        """After the turns of all: does somebody wait for nothing? `others`: another model or a job
        is at work; `loading`: a model comes or goes."""
        if self.moves:
            self._watchdog.moves()
        elif not (self._unfinished or self.lane.has_work):
            self._watchdog.rests()
        elif loading:
            self._watchdog.pauses()
        else:
            self._guard(lambda: self._stand(others))

    def read_ahead(self) -> None:
        """Read the step that is out, if any."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            self._guard(lambda: self._read(ahead, None))

    def end(self, why: str) -> None:
        """Nobody is left waiting."""
        self._ahead = None
        for open_request in list(self._unfinished.values()):
            guarded(lambda r=open_request: self.lane.scheduler.cancel(r.request.id))  # type: ignore[misc]
            self._send(open_request.end(FinishReason.ERROR, why))

    def beat(self) -> None:
        """Say that it lives, and what it is doing."""
        lane, tally = self.lane, self.tally()
        self.status = Status(
            State.READY,
            lane.scheduler.load,
            self._clock(),
            cache=tally.cache,
            live=max(lane.promised, lane.runner.live_bytes),
            preempted=tally.preempted,
            oldest=lane.scheduler.oldest(),
            stalls=tally.stalls,
        )

    def tally(self) -> Counted:
        """What was counted up to now."""
        cache = self.lane.cache.report()
        cache = cache.after(self._before) if self._before.queried_tokens else cache
        return Counted(cache, self.rungs[Rung.PREEMPT], self._stalls)

    @property
    def rungs(self) -> Counter[Rung]:
        """How often which kind of relief was needed."""
        watch = self.lane.watch
        return watch.guard.used if watch is not None else Counter()

    # -- one turn ------------------------------------------------------------------------

    def _turn(self, alone: bool) -> None:
        lane = self.lane
        self.beat()
        self._send(lane.scheduler.expire(self._clock()))
        lane.recall()
        self._send(lane.relieve(self._clock()))
        step = lane.scheduler.schedule(self._clock())
        self._busy = step is not None  # else all who wait do so for the cold tier, which wakes us
        self._computes = step is not None and bool(step.decodes or step.chunks)
        ahead, self._ahead = self._ahead, None
        self._ahead = self._step(step, ahead, alone)
        if self._ahead is None and not lane.has_work:
            lane.check_invariants()

    def _admit(self, request: Request) -> None:
        # Noted first: should the scheduler crash on it, its client still gets an answer.
        self._unfinished[request.id] = _Open(request, set(range(request.n)))
        self.lane.look()
        within = self.lane.scheduler.bound(request)
        rejected = self.lane.scheduler.add(request, self._clock())
        if rejected is not None:
            del self._unfinished[request.id]
        self._publish([rejected or Accepted(request.id, within)])

    def _step(self, step: Step | None, ahead: Launched | None, alone: bool) -> Launched | None:
        """Launch a step and read the one before. Returns what is still out. Nothing else refers to
        a step's payloads after it: they would be held for a turn more than the account says."""
        launched = self._launch(step)
        if isinstance(launched, Crash):
            self._isolate(launched)
            return None
        at_once = launched is not None and (launched.at_once or not alone)
        return self._read(ahead, launched, at_once=at_once)

    def _launch(self, step: Step | None) -> Launched | Crash | None:
        if step is None:
            return None
        launched = guarded(lambda: self.lane.launch(step))
        if not isinstance(launched, Crash):
            self._publish(step.admissions)
        return launched

    def _read(
        self, ahead: Launched | None, launched: Launched | None, *, at_once: bool = False
    ) -> Launched | None:
        """Read the step before, and this one too if it should not wait. Returns what is still
        out."""
        for step in (ahead, launched if at_once else None):
            if step is None:
                continue
            crash = guarded(lambda step=step: self._finish_step(step))  # type: ignore[misc]
            if isinstance(crash, Crash):
                self._isolate(crash)
                return None
        return None if at_once else launched

    def _finish_step(self, launched: Launched) -> None:
        self._send(self.lane.read(launched))
        if launched.prefilling:
            events = self.lane.run_chunks(launched)
            restored, self.lane.restored = self.lane.restored, []
            if restored:
                self._publish(restored)
            self._send(events)

    def _send(self, events: Sequence[TokenEvent]) -> None:
        for event in events:
            if event.finish:
                self._close(event.request_id, event.index)
        if events:
            self._watchdog.answered()
            self._publish(events)

    def _close(self, request_id: RequestId, index: int | None) -> None:
        open_request = self._unfinished.get(request_id)
        if open_request is None:
            return
        open_request.choices -= {index} if index is not None else open_request.choices.copy()
        if not open_request.choices:
            del self._unfinished[request_id]

    # -- when nothing moves --------------------------------------------------------------

    def _stand(self, others: bool) -> None:
        now = self._clock()
        standings = list[Standing]()

        def excuse() -> Excuse:
            standings.extend(self.lane.scheduler.standings(now))
            awaited = {standing.awaited for standing in standings}
            if others and Awaited.MEMORY in awaited:
                return Excuse.OTHERS
            return Excuse.READS if Awaited.COLD in awaited else Excuse.NONE

        verdict = self._watchdog.look(now, excuse)
        if verdict is Verdict.WAIT:
            return
        stood = self._watchdog.stood
        self._tell_of(standings, verdict, stood, now)
        self._busy = True
        if verdict is Verdict.START_OVER:
            self._start_over()
        else:
            self._give_up(f"nothing had moved for {stood:.0f} s, nor after a new start")

    def _tell_of(
        self, standings: Sequence[Standing], verdict: Verdict, stood: float, now: float
    ) -> None:
        """One line for all, then one for each."""
        watch = self.lane.watch
        _log.error(
            "nothing has moved for %.0f s though %d requests wait (%s): %s",
            stood,
            len(self._unfinished),
            "memory is not watched" if watch is None else watch.guard.ledger,
            verdict.value,
        )
        for standing in standings:
            _log.error("%s", standing.line(now))
        for id in self._unfinished.keys() - {standing.request for standing in standings}:
            _log.error("%s is nowhere", id)

    def _start_over(self) -> None:
        """With all who are there, output kept. Who is nowhere ends with an error."""
        self._stalls += Stalls(restarted=1)
        self._before = CacheReport().after(self.tally().cache)
        here = self.lane.begin_again()
        for request_id in {id.request for id in here} - self._unfinished.keys():
            self.lane.scheduler.cancel(request_id)
        for known in list(self._unfinished.values()):
            events = known.end(FinishReason.ERROR, "the engine had lost it")
            self._send([e for e in events if SequenceId(e.request_id, e.index) not in here])

    def _give_up(self, why: str) -> None:
        """They all end with an error."""
        self._stalls += Stalls(ended=1)
        self._before = CacheReport().after(self.tally().cache)
        self.end(why)
        self.lane.start_over()

    # -- when things go wrong ------------------------------------------------------------

    def _guard(self, act: Callable[[], object]) -> None:
        crash = guarded(act)
        if isinstance(crash, Crash):
            self._ahead = None
            self._busy = True
            if not self._survive(crash):
                problem = f"the engine crashed {MOST} times"
                self.status = replace(
                    self.status,
                    state=State.FAILED,
                    load=Load(0, 0, 0),
                    beat=self._clock(),
                    problem=problem,
                    live=0,
                    oldest={},
                )
                self.end(problem)
                guarded(self.lane.give_up)

    def _isolate(self, crash: Crash) -> None:
        """A step of the whole batch raised. Find the sequences that raise alone, end those.

        All computed work is lost with the caches; the others are prefilled again, output kept.
        Where memory was missing that is nobody's fault, and the newest request goes.
        """
        if device.is_out_of_memory(crash.error):
            _log.error("there was no memory for a step: %s", first_line(crash.error))
            self._send(self.lane.starved())
            return
        _log.error("a step failed; looking for its cause", exc_info=crash.error)
        suspects = self.lane.restart()
        guilty = 0
        for sequence in suspects:
            self.beat()
            join = sequence.join()
            alone = guarded(lambda join=join: self.lane.runner.probe(join))  # type: ignore[misc]
            if isinstance(alone, Crash):
                guilty += 1
                message = f"{alone.summary} while generating"
                self._send(self.lane.scheduler.fail_sequence(sequence.id, message))
        if not guilty:
            raise crash.error

    def _survive(self, crash: Crash) -> bool:
        """Start over with a fresh scheduler. False when this has happened too often.

        Requests that have not run keep their place; those that ran end with an error, since one
        of them may be the cause.
        """
        _log.critical("the engine loop crashed", exc_info=crash.error)
        now = self._clock()
        if self._crashes.are_too_many(now):
            return False
        waiting = guarded(self.lane.scheduler.waiting_requests)
        self._before = CacheReport().after(self.status.cache)
        self.lane.start_over()
        for open_request in list(self._unfinished.values()):
            if isinstance(waiting, Crash) or open_request.request.id not in waiting:
                self._send(open_request.end(FinishReason.ERROR, _RESTARTED))
                continue
            refused = self.lane.scheduler.add(open_request.request, now)
            if refused is not None:  # the bounds are tighter than they were when it was accepted
                why = FinishReason.MEMORY if refused.no_room else FinishReason.ERROR
                self._send(open_request.end(why, refused.no_room or _RESTARTED))
        return True


class _Open:
    """A request whose end has not been sent, and its open choices."""

    def __init__(self, request: Request, choices: set[int]) -> None:
        self.request = request
        self.choices = choices

    def end(self, why: FinishReason, message: str) -> list[TokenEvent]:
        return [
            TokenEvent(self.request.id, index, finish=why, error=message)
            for index in sorted(self.choices)
        ]
