"""The mlx thread: it alone touches arrays, the scheduler and the runner.

One turn, in order:

    1. take in what came (requests, cancels)
    2. end what is past its deadline
    3. schedule the next step and launch it
    4. read the step before it, which ran meanwhile, and send its tokens out
    5. do a slice of a job

So the device is one step ahead of the host. A step with prefill chunks is waited for at once:
its length hides the host's work anyway, and newcomers then wait for one chunk, not for two. Where a
launch takes as long as the work (the CPU backend) so is a step that gives first tokens.
"""

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from queue import Empty, SimpleQueue

from omlx_server.compute import device
from omlx_server.compute.runner import Launched
from omlx_server.core.guard import Crash, guarded
from omlx_server.core.limits import Load
from omlx_server.core.request import FinishReason, Request, RequestId, TokenEvent
from omlx_server.core.step import Step
from omlx_server.engine.jobs import Jobs, Work, settle
from omlx_server.engine.lane import Lane
from omlx_server.engine.messages import (
    Accepted,
    Ask,
    Cancel,
    Inbound,
    Outbound,
    Start,
    State,
    Status,
    Stop,
    Submit,
    Wake,
)
from omlx_server.errors import Unavailable, first_line

_log = logging.getLogger(__name__)

_IDLE_BEAT_SECONDS = 1.0
# The next turn of a conversation often comes sooner than this, and goes faster with the memory of
# the last one.
_REST_SECONDS = 120.0
# Clients that start together reach us over 10 to 15 ms, a millisecond or two apart.
_GATHER_SECONDS = 0.03
_QUIET_SECONDS = 0.003
_GATHER_POLL_SECONDS = 0.001
_MAX_CRASHES = 3
_CRASH_WINDOW_SECONDS = 60.0


class Engine(threading.Thread):
    """Owns one model. `load` runs on this thread, because arrays belong to the thread they are
    made on; `publish` is called on it with the events of each turn. `expected` tells how many
    requests are being prepared, to come in a moment."""

    def __init__(
        self,
        load: Callable[[], Lane],
        publish: Callable[[Sequence[Outbound]], None],
        expected: Callable[[], int] = lambda: 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(name="mlx", daemon=True)
        self.inbox: SimpleQueue[Inbound] = SimpleQueue()
        self._load = load
        self._publish = publish
        self._expected = expected
        self._clock = clock
        self._unfinished: dict[RequestId, _Open] = {}
        self._crashes: deque[float] = deque(maxlen=_MAX_CRASHES)
        self._stopping = False
        self._drain_seconds = 0.0
        self._rest_at = clock() + _REST_SECONDS
        self._jobs = Jobs()
        self._lane: Lane
        self.status = Status(State.STARTING, Load(0, 0, 0), clock())

    # -- the thread ----------------------------------------------------------------------

    def run(self) -> None:
        """Load, warm up, then turn until stopped. A crash of the loop is survived, not three."""
        loaded = guarded(self._start)
        if isinstance(loaded, Crash):
            _log.error("the model could not be started", exc_info=loaded.error)
            self._finish(State.FAILED, str(loaded.error))
            return
        while not self._stopping:
            crash = guarded(self._turn_until_stopped)
            if isinstance(crash, Crash) and not self._survive(crash):
                self._finish(State.FAILED, f"the engine crashed {_MAX_CRASHES} times")
                return
        self._finish(State.STOPPED, "the server is shutting down")
        self._lane.close(self._drain_seconds)

    def _start(self) -> None:
        self._lane = self._load()
        self._lane.start(lambda: self.inbox.put(Wake()))
        if not self._lane.runner.batchable:
            _log.warning("this model's caches have no batch form: it runs one sequence at a time")
        self._lane.runner.warm_up()
        self._beat()

    def _turn_until_stopped(self) -> None:
        ahead: Launched | None = None
        busy = False
        while not self._stopping:
            self._take_in(wait=ahead is None and not busy and not self._jobs)
            self._gather()
            self._beat()
            self._rest()
            self._send(self._lane.scheduler.expire(self._clock()))
            self._lane.recall()
            self._send(self._lane.relieve(self._clock()))
            step = self._lane.scheduler.schedule(self._clock())
            busy = step is not None  # else all who wait do so for the cold tier, which wakes us
            ahead = self._step(step, ahead)
            self._jobs.turn()
            if ahead is None:
                self._lane.check_account(self._clock())
                if not self._lane.scheduler.has_work:
                    self._lane.check_invariants()

    # -- one turn ------------------------------------------------------------------------

    def _take_in(self, *, wait: bool) -> None:
        """Empty the inbox; when idle, wait for the first message."""
        try:
            if wait:
                self._take(self.inbox.get(timeout=_IDLE_BEAT_SECONDS))
            while True:
                self._take(self.inbox.get_nowait())
        except Empty:
            return

    def _rest(self) -> None:
        """After a while without work, what the last step left goes back to the machine."""
        now = self._clock()
        if self._lane.scheduler.has_work or self._jobs:
            self._rest_at = now + _REST_SECONDS
        elif now >= self._rest_at:
            device.drain_pool()
            self._rest_at = math.inf

    def _gather(self) -> None:
        """Before prompts are read from rest, wait until no more requests are on their way: short
        prompts that are read together cost less."""
        now = self._clock()
        end, quiet = now + _GATHER_SECONDS, now + _QUIET_SECONDS
        while now < min(end, quiet):
            load, tokens = self._lane.scheduler.load, self._lane.scheduler.waiting_tokens
            if load.running or load.prefilling or not tokens:
                return
            came = self._expected() > 0
            with suppress(Empty):
                self._take(self.inbox.get(timeout=_GATHER_POLL_SECONDS))
                came = True
            now = self._clock()
            quiet = now + _QUIET_SECONDS if came else quiet

    def _take(self, message: Inbound) -> None:
        match message:
            case Submit(request):
                self._admit(request)
            case Cancel(request_id, index):
                self._lane.scheduler.cancel(request_id, index)
                self._close(request_id, index)
            case Ask(question, answer):
                self._answer(question, answer)
            case Start(make, answer):
                self._begin(make, answer)
            case Stop(drain_seconds):
                self._stopping = True
                self._drain_seconds = drain_seconds
            case Wake():
                pass

    def _admit(self, request: Request) -> None:
        # Noted first: should the scheduler crash on it, its client still gets an answer.
        self._unfinished[request.id] = _Open(request, set(range(request.n)))
        rejected = self._lane.scheduler.add(request, self._clock())
        if rejected is not None:
            del self._unfinished[request.id]
        self._publish([rejected or Accepted(request.id)])

    def _answer(self, question: Callable[[Lane], object], answer: Future[object]) -> None:
        result = guarded(lambda: question(self._lane))
        if isinstance(result, Crash):
            settle(answer, error=result.error)
        else:
            settle(answer, result=result)

    def _begin(self, make: Callable[[Lane], Work[object]], answer: Future[object]) -> None:
        work = guarded(lambda: make(self._lane))
        if isinstance(work, Crash):
            settle(answer, error=work.error)
        else:
            self._jobs.add(work, answer)

    def _step(self, step: Step | None, ahead: Launched | None) -> Launched | None:
        """Launch a step and read the one before. Returns what is still out. Nothing else refers to
        a step's payloads after it: they would be held for a turn more than the account says."""
        launched = self._launch(step)
        if isinstance(launched, Crash):
            self._isolate(launched)
            return None
        return self._read(ahead, launched)

    def _launch(self, step: Step | None) -> Launched | Crash | None:
        if step is None:
            return None
        launched = guarded(lambda: self._lane.launch(step))
        if not isinstance(launched, Crash):
            self._publish(step.admissions)
        return launched

    def _read(self, ahead: Launched | None, launched: Launched | None) -> Launched | None:
        """Read the step before, and this one too if it should not wait. Returns what is still
        out."""
        at_once = launched and launched.at_once
        for step in (ahead, launched if at_once else None):
            if step is None:
                continue
            crash = guarded(lambda step=step: self._finish_step(step))  # type: ignore[misc]
            if isinstance(crash, Crash):
                self._isolate(crash)
                return None
        return None if at_once else launched

    def _finish_step(self, launched: Launched) -> None:
        self._send(self._lane.read(launched))
        if launched.prefilling:
            self._send(self._lane.run_chunks(launched))

    def _send(self, events: Sequence[TokenEvent]) -> None:
        for event in events:
            if event.finish:
                self._close(event.request_id, event.index)
        if events:
            self._publish(events)

    def _close(self, request_id: RequestId, index: int | None) -> None:
        open_request = self._unfinished.get(request_id)
        if open_request is None:
            return
        open_request.choices -= {index} if index is not None else open_request.choices.copy()
        if not open_request.choices:
            del self._unfinished[request_id]

    def _beat(self) -> None:
        lane = self._lane
        self.status = Status(
            State.READY,
            lane.scheduler.load,
            self._clock(),
            cache=lane.cache.report(),
            cold=lane.cold.report() if lane.cold else None,
            memory=lane.watch.report() if lane.watch else None,
        )

    # -- when things go wrong ------------------------------------------------------------

    def _isolate(self, crash: Crash) -> None:
        """A step of the whole batch raised. Find the sequences that raise alone, end those.

        All computed work is lost with the caches; the others are prefilled again, output kept.
        Where memory was missing that is nobody's fault, and the newest request goes.
        """
        if device.is_out_of_memory(crash.error):
            _log.error("there was no memory for a step: %s", first_line(crash.error))
            self._send(self._lane.starved())
            return
        _log.error("a step failed; looking for its cause", exc_info=crash.error)
        suspects = self._lane.restart()
        guilty = 0
        for sequence in suspects:
            self._beat()
            join = sequence.join()
            alone = guarded(lambda join=join: self._lane.runner.probe(join))  # type: ignore[misc]
            if isinstance(alone, Crash):
                guilty += 1
                message = f"{alone.summary} while generating"
                self._send(self._lane.scheduler.fail_sequence(sequence.id, message))
        if not guilty:
            raise crash.error

    def _survive(self, crash: Crash) -> bool:
        """Start over with a fresh scheduler. False when this has happened too often.

        Requests that have not run keep their place; those that ran end with an error, since one
        of them may be the cause.
        """
        _log.critical("the engine loop crashed", exc_info=crash.error)
        now = self._clock()
        self._crashes.append(now)
        if len(self._crashes) == _MAX_CRASHES and now - self._crashes[0] < _CRASH_WINDOW_SECONDS:
            return False
        waiting = guarded(self._lane.scheduler.waiting_requests)
        self._lane.start_over()
        for open_request in list(self._unfinished.values()):
            if not isinstance(waiting, Crash) and open_request.request.id in waiting:
                self._lane.scheduler.add(open_request.request, now)
            else:
                self._send(open_request.end(FinishReason.ERROR, "the engine had to be restarted"))
        return True

    def _finish(self, state: State, problem: str) -> None:
        """The last act of the thread: nobody is left waiting."""
        self.status = Status(state, Load(0, 0, 0), self._clock(), problem)
        for open_request in list(self._unfinished.values()):
            self._send(open_request.end(FinishReason.ERROR, problem))
        self._jobs.end(Unavailable(problem))
        while not self.inbox.empty():
            message = self.inbox.get_nowait()
            if isinstance(message, Ask | Start):
                message.answer.cancel()
            if isinstance(message, Submit):
                self._publish(_Open(message.request, {0}).end(FinishReason.ERROR, problem))


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
