"""The mlx thread: it alone touches arrays, schedulers and runners, of all models.

One turn, in order:

    1. take in what came (requests, cancels, models to load or to unload)
    2. a turn of each model's lane (engine/step_loop.py)
    3. a slice of a job: an embedding, a model that is being loaded

Models are known by numbers: one that is loaded again has another one.
"""

import gc
import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from omlx_server.compute.hardware import device
from omlx_server.core.cold.index import ColdReport
from omlx_server.core.guard import Crash, guarded
from omlx_server.core.memory.ledger import MemoryReport
from omlx_server.core.work import Work, finish
from omlx_server.engine.census import Census
from omlx_server.engine.crashes import Crashes
from omlx_server.engine.jobs import Jobs, settle
from omlx_server.engine.memory.account import Account
from omlx_server.engine.memory.monitor import Audit
from omlx_server.engine.messages import (
    Ask,
    Call,
    Cancel,
    Counted,
    Failed,
    Inbound,
    LoadModel,
    ModelId,
    Outbound,
    Start,
    Status,
    Stop,
    Submit,
    UnloadModel,
    Wake,
    ended,
)
from omlx_server.engine.model_instance import Lane
from omlx_server.engine.step_loop import Driver
from omlx_server.errors import Unavailable

_log = logging.getLogger(__name__)

_IDLE_BEAT_SECONDS = 1.0
_BEAT_SECONDS = 0.5
# The next turn of a conversation often comes sooner than this, and goes faster with the memory of
# the last one.
_REST_SECONDS = 120.0
# Clients that start together reach us over 10 to 15 ms, a millisecond or two apart.
_GATHER_SECONDS = 0.03
_QUIET_SECONDS = 0.003
_GATHER_POLL_SECONDS = 0.001
_CLOSING_SECONDS = 1.0
_GONE = "the model is not loaded"


class Resident(Protocol):
    """A model that is loaded."""

    @property
    def weight_bytes(self) -> int: ...
    def leave(self) -> None:
        """Let go of everything."""
        ...


class Engine(threading.Thread):
    """Owns all models: lanes, and models that read. They are loaded on this thread, because arrays
    belong to the thread they are made on; `publish` is called on it with the events of each turn.
    `expected` tells how many requests are being prepared, to come in a moment. `closing` is called
    at the end with the seconds that are left. `cold` reports on the cold tier."""

    def __init__(
        self,
        publish: Callable[[Sequence[Outbound]], None],
        expected: Callable[[], int] = lambda: 0,
        account: Account | None = None,
        closing: Callable[[float], None] = lambda seconds: None,
        cold: Callable[[], ColdReport | None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(name="mlx", daemon=True)
        self.inbox: SimpleQueue[Inbound] = SimpleQueue()
        self._publish = publish
        self._expected = expected
        self._audit = Audit(account) if account is not None else None
        self._closing = closing
        self._report_cold = cold
        self._clock = clock
        self._stopping = False
        self._drain_seconds = 0.0
        self._rest_at = clock() + _REST_SECONDS
        self._jobs, self._moves = Jobs(), Jobs()
        self._census = Census()
        self._models: dict[ModelId, Resident] = {}
        self._drivers: dict[ModelId, Driver] = {}
        self.beat = clock()
        self.memory: MemoryReport | None = None
        self.cold: ColdReport | None = None

    @property
    def last_beat(self) -> float:
        """When it last did something, or one of its lanes. Any thread."""
        return max([self.beat, *(d.status.beat for d in tuple(self._drivers.values()))])

    def status(self, id: ModelId) -> Status | None:
        """Of a model that writes. Any thread."""
        driver = self._drivers.get(id)
        return driver.status if driver is not None else None

    @property
    def counted(self) -> dict[str, Counted]:
        """What models have counted by name, those that were unloaded as well. Any thread."""
        return self._census.counted

    # -- the thread ----------------------------------------------------------------------

    def run(self) -> None:
        """Turn until stopped. What a lane does wrong is its driver's business; should a turn fail
        all the same, that is survived, not three times."""
        crashes = Crashes()
        while not self._stopping:
            crash = guarded(self._turn)
            if isinstance(crash, Crash):
                _log.critical("a turn of the engine failed", exc_info=crash.error)
                if crashes.are_too_many(self._clock()):
                    break
        self._end()

    def _turn(self) -> None:
        self._take_in(wait=self._is_at_rest and not (self._jobs or self._moves))
        self._gather()
        self._rest()
        self._turn_lanes()
        self._look_after()
        ended = [jobs.turn() for jobs in (self._moves, self._jobs)]
        if any(ended):
            for driver in self._drivers.values():
                driver.look()  # there may be room now for who waits for it
        self._say()

    def _turn_lanes(self) -> None:
        """Apart, so that nothing refers to a lane any more when a job unloads it."""
        drivers = [d for d in self._drivers.values() if not d.failed]
        at_work = [d for d in drivers if d.has_work]
        if len(at_work) > 1:
            for driver in at_work:
                driver.read_ahead()
        now = self._clock()
        for driver in drivers:
            if driver.wants_a_turn or now - driver.status.beat > _BEAT_SECONDS:
                driver.turn(alone=len(at_work) < 2)
        self._watch(drivers)

    def _watch(self, drivers: Sequence[Driver]) -> None:
        """After the turns: nobody may wait for nothing. Idle turns come each second."""
        waiting = self._audit.account.waiting if self._audit is not None else ()
        jobs_work = len(self._jobs) > len(waiting)
        moving = [driver for driver in drivers if driver.moves]
        for driver in drivers:
            others = jobs_work or any(other is not driver for other in moving)
            driver.watch(others=others, loading=bool(self._moves))

    def _look_after(self) -> None:
        """Between the lanes' turns and the jobs: who has failed, does the account still hold?"""
        for id, driver in self._drivers.items():
            if driver.failed and id in self._models:
                del self._models[id]
                self._publish([Failed(id, driver.status.problem)])
        if self._audit is None:
            return
        self._audit.account.trim()
        if (
            self._is_at_rest
            and not (self._jobs or self._moves)
            and self._audit.is_due(self._clock())
        ):
            device.wait()
            self._audit.check(self._clock())

    def _say(self) -> None:
        """What other threads may know."""
        self.beat = self._clock()
        self.cold = self._report_cold()
        if self._audit is not None:
            watches = (d.lane.watch for d in self._drivers.values())
            guards = (w.guard for w in watches if w is not None)
            self.memory = self._audit.report(guards, self._census.rungs)

    # -- one turn ------------------------------------------------------------------------

    @property
    def _is_at_rest(self) -> bool:
        return all(d.is_at_rest or d.failed for d in self._drivers.values())

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
        if self._jobs or self._moves or any(d.has_work for d in self._drivers.values()):
            self._rest_at = now + _REST_SECONDS
        elif now >= self._rest_at:
            device.give_back()
            self._rest_at = math.inf

    def _gather(self) -> None:
        """Before prompts are read from rest, wait until no more requests are on their way: short
        prompts that are read together cost less."""
        now = self._clock()
        end, quiet = now + _GATHER_SECONDS, now + _QUIET_SECONDS
        while now < min(end, quiet):
            loads = [d.lane.scheduler.load for d in self._drivers.values()]
            tokens = sum(d.lane.scheduler.waiting_tokens for d in self._drivers.values())
            if not tokens or any(load.running or load.prefilling for load in loads):
                return
            came = self._expected() > 0
            with suppress(Empty):
                self._take(self.inbox.get(timeout=_GATHER_POLL_SECONDS))
                came = True
            now = self._clock()
            quiet = now + _QUIET_SECONDS if came else quiet

    def _take(self, message: Inbound) -> None:
        match message:
            case Submit(id, request):
                driver = self._drivers.get(id)
                if driver is None:
                    self._publish(ended(request, _GONE))
                else:
                    driver.admit(request)
            case Cancel(id, request_id, index):
                if id in self._drivers:
                    self._drivers[id].cancel(request_id, index)
            case Call(act, answer):
                self._answer(act, answer)
            case Ask(id, question, answer):
                self._answer(lambda: question(self._model(id)), answer)
            case Start(id, make, answer):
                self._start(id, make, answer)
            case LoadModel(id, work, answer, name):
                self._moves.add(self._load(id, work, name), answer)
            case UnloadModel(id, seconds, answer):
                self._moves.add(self._unload(id, seconds), answer)
            case Stop(drain_seconds):
                self._stopping = True
                self._drain_seconds = drain_seconds
            case Wake():
                pass

    def _answer(self, act: Callable[[], object], answer: Future[object]) -> None:
        result = guarded(act)
        for driver in self._drivers.values():
            driver.look()
        if isinstance(result, Crash):
            settle(answer, error=result.error)
        else:
            settle(answer, result=result)

    def _start(
        self, id: ModelId, make: Callable[[Any], Work[object]], answer: Future[object]
    ) -> None:
        work = guarded(lambda: make(self._model(id)))
        if isinstance(work, Crash):
            settle(answer, error=work.error)
        else:
            self._jobs.add(work, answer)

    def _model(self, id: ModelId) -> Resident:
        if id not in self._models:
            raise Unavailable(_GONE)
        return self._models[id]

    # -- models come and go --------------------------------------------------------------

    def _load(self, id: ModelId, work: Work[Resident], name: str) -> Work[None]:
        try:
            model = yield from work
        finally:
            if id not in self._models:
                self._give_back()  # of a load that failed; of another one it is little
        self._models[id] = model
        if isinstance(model, Lane):
            driver = self._drivers[id] = Driver(model, self._publish, self._clock)
            self._census.comes(id, name, driver)

    def _unload(self, id: ModelId, seconds: float) -> Work[None]:
        """Give back all that a model holds; what it has kept goes to the cold tier before."""
        driver = self._drivers.get(id)
        try:
            if driver is not None:
                driver.read_ahead()
                driver.end("the model was unloaded")
                yield from driver.lane.closing(seconds)
        finally:
            self._drop(id)
            del driver
            self._give_back()

    def _drop(self, id: ModelId) -> None:
        """Nothing refers to it any more, whatever it says to that."""
        driver = self._drivers.pop(id, None)
        model = driver.lane if driver is not None else self._models.get(id)
        self._models.pop(id, None)
        if model is not None:
            self._census.leaves(id)
            crash = guarded(model.leave)
            if isinstance(crash, Crash):
                _log.error("a model left disorder behind", exc_info=crash.error)

    def _give_back(self) -> None:
        gc.collect()  # models and their caches hold each other
        device.give_back()

    # -- the end -------------------------------------------------------------------------

    def _end(self) -> None:
        """The last act of the thread: nobody is left waiting."""
        why = "the server is shutting down"
        for driver in self._drivers.values():
            driver.end(why)
        self._jobs.end(Unavailable(why))
        self._moves.end(Unavailable(why))
        while not self.inbox.empty():
            message = self.inbox.get_nowait()
            if isinstance(message, Call | Ask | Start | LoadModel | UnloadModel):
                message.answer.cancel()
            if isinstance(message, Submit):
                self._publish(ended(message.request, why))
        self._drain(self._clock() + self._drain_seconds)

    def _drain(self, end: float) -> None:
        last = end - min(_CLOSING_SECONDS, self._drain_seconds / 2)
        for driver in self._drivers.values():
            closed = guarded(lambda d=driver: finish(d.lane.closing(last - self._clock())))  # type: ignore[misc]
            if isinstance(closed, Crash):
                _log.error("the prefix cache could not be kept", exc_info=closed.error)
        self._closing(end - self._clock())
