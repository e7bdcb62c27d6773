"""The mlx thread: it alone touches arrays, schedulers and runners, of all models.

One turn, in order:

    1. take in messages
    2. run a step of a model (engine/step_loop.py) or a slice of a job, in the order of
       engine/turns.py
    3. run a slice of a model's load or unload
"""

import logging
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from omlx_server import clock
from omlx_server.compute.hardware import device, heap
from omlx_server.core.cold.index import ColdReport
from omlx_server.core.crash import Crash, Crashes, guarded
from omlx_server.core.device_errors import RecentFaults
from omlx_server.core.interval import REPORT_SECONDS, Interval
from omlx_server.core.memory.ledger import MemoryReport
from omlx_server.core.work import Work, finish
from omlx_server.engine.census import Census
from omlx_server.engine.memory.account import Audit, MemoryAccount
from omlx_server.engine.messages import (
    Cancel,
    EngineCall,
    Failed,
    Inbound,
    LoadModel,
    ModelId,
    Outbound,
    Removable,
    StartJob,
    Status,
    Stop,
    Submit,
    UnloadModel,
    Wake,
    end_events,
)
from omlx_server.engine.model_instance import ModelInstance
from omlx_server.engine.recovery import note_job_error
from omlx_server.engine.step_loop import StepLoop
from omlx_server.engine.turns import DeviceTurns, Jobs, part_of, settle
from omlx_server.errors import Unavailable

_log = logging.getLogger(__name__)

_IDLE_BEAT_SECONDS = 1.0
_CLAIM_BEAT_SECONDS = 0.02  # each job that waits for memory has a turn in it
_BEAT_SECONDS = 0.5
_JOBS = -1  # number of the jobs in DeviceTurns
# Freed buffers stay for so long: the next turn of a conversation is faster with them.
_REST_SECONDS = 120.0
# Requests of clients that start together come over 10 to 15 ms, a millisecond or two apart.
_GATHER_SECONDS = 0.03
_QUIET_SECONDS = 0.003
_GATHER_POLL_SECONDS = 0.001
_CLOSING_SECONDS = 1.0
# For writes to the cold tier when the device is lost.
_LEAVING_SECONDS = 5.0
_GONE = "the model is not loaded"


class Engine(threading.Thread):
    """Owns all models. `count_expected` counts requests that are being prepared."""

    def __init__(
        self,
        publish: Callable[[Sequence[Outbound]], None],
        count_expected: Callable[[], int] = lambda: 0,
        account: MemoryAccount | None = None,
        close_cold_tier: Callable[[float], None] = lambda seconds: None,
        report_cold: Callable[[], ColdReport | None] = lambda: None,
        clock: Callable[[], float] = clock.now,
    ) -> None:
        super().__init__(name="mlx", daemon=True)
        self.inbox: SimpleQueue[Inbound] = SimpleQueue()
        self._publish = publish
        self._count_expected = count_expected
        self._audit = Audit(account) if account is not None else None
        self._close_cold_tier = close_cold_tier
        self._report_cold = report_cold
        self._clock = clock
        self._stopping = False
        self._drain_seconds = 0.0
        self._rest_at = clock() + _REST_SECONDS
        self.faults = RecentFaults()
        self.problem = "the engine thread ended"  # if nobody stops it
        self._jobs = Jobs(translate=partial(note_job_error, self.faults, clock, self._shorten))
        self._model_changes = Jobs(translate=self._note_load_error)  # loads and unloads
        self._turns = DeviceTurns(clock)
        self.census = Census()
        self._report = Interval(REPORT_SECONDS)
        self._models: dict[ModelId, Removable] = {}
        self._step_loops: dict[ModelId, StepLoop] = {}
        self.beat = clock()
        self.memory: MemoryReport | None = None
        self.cold: ColdReport | None = None

    @property
    def last_beat(self) -> float:
        return max([self.beat, *(loop.status.beat for loop in tuple(self._step_loops.values()))])

    def status(self, id: ModelId) -> Status | None:
        """Return the status of a model that generates, else None. Any thread."""
        step_loop = self._step_loops.get(id)
        return step_loop.status if step_loop is not None else None

    def run(self) -> None:
        """Turn until stopped, until the device works for a new process only, or until the third
        failed turn within a minute."""
        crashes = Crashes()
        while not (self._stopping or self.faults.lost):
            crash = guarded(self._turn)
            if isinstance(crash, Crash):
                _log.critical("a turn of the engine failed", exc_info=crash.error)
                if crashes.are_too_many(self._clock()):
                    break
        if self.faults.lost:
            self.problem, self._drain_seconds = self.faults.lost, _LEAVING_SECONDS
        self._end()

    def _turn(self) -> None:
        has_jobs = self._model_changes or self._has_runnable_jobs
        self._take_messages(wait=self._is_at_rest and not has_jobs)
        self._wait_for_announced()
        self._turn_instances()
        self._look_after_models()
        self._run_job_slice(self._model_changes)
        self._publish_reports()

    def _turn_instances(self) -> None:
        """Give the device to the next user that computes something, and look at the others."""
        step_loops = {id: loop for id, loop in self._step_loops.items() if not loop.failed}
        at_work = [id for id, loop in step_loops.items() if loop.has_work]
        has_jobs = bool(self._jobs or self._model_changes)
        self._give_back_at_rest(busy=bool(at_work) or has_jobs)
        turn = partial(StepLoop.turn, is_only_model=len(at_work) < 2, has_jobs=has_jobs)
        if len(at_work) > 1:
            for id in at_work:
                step_loops[id].finish_ahead()
        if self._jobs and self._has_runnable_jobs:
            at_work.append(_JOBS)
        clients = self._clients_of_users() if len(at_work) > 1 else {}
        if clients or self._turns.parts:
            urgent_from = {id: step_loops[id].order.urgent_from for id in at_work if id != _JOBS}
            for user in self._turns.in_order(clients, urgent_from):
                if self._give_turn(user, turn):
                    break
        self._turn_others(step_loops, turn)
        if self._jobs and _JOBS not in self._turns.parts:
            self._run_job_slice(self._jobs)
        self._watch([*step_loops.values()])

    def _turn_others(
        self, step_loops: Mapping[ModelId, StepLoop], turn: Callable[[StepLoop], None]
    ) -> None:
        """Turn a model that works alone, and those whose last turn is long ago."""
        now = self._clock()
        for id, step_loop in step_loops.items():
            is_late = now - step_loop.status.beat > _BEAT_SECONDS
            if id not in self._turns.parts:  # it shares the device with nobody
                if is_late or step_loop.wants_a_turn:
                    turn(step_loop)
            elif is_late:
                self._give_turn(id, turn)

    def _clients_of_users(self) -> dict[int, set[bytes]]:
        clients = {id: loop.clients for id, loop in self._step_loops.items()}
        clients[_JOBS] = self._jobs.clients if self._has_runnable_jobs else set()
        return clients

    def _give_turn(self, user: int, turn: Callable[[StepLoop], None]) -> bool:
        """Turn a model or a job. Return whether it computed something."""
        with self._turns.turn(user) as waited_seconds:
            if user == _JOBS:
                self._run_job_slice(self._jobs)
                return True
            step_loop = self._step_loops[user]
            step_loop.order.set_part(self._turns.parts[user], waited_seconds)
            turn(step_loop)
            return step_loop.is_moving

    def _run_job_slice(self, jobs: Jobs) -> None:
        if jobs.run_slice():
            for step_loop in self._step_loops.values():
                step_loop.ask_for_turn()  # there may be room now for waiting requests

    def _watch(self, step_loops: Sequence[StepLoop]) -> None:
        # Memory set aside for other threads, such as image decoders, will come back.
        # So will what pressure on the machine's memory keeps from them.
        account = self._audit.account if self._audit is not None else None
        is_kept = account is not None and (account.set_aside > 0 or account.pressure.is_critical)
        moving = [step_loop for step_loop in step_loops if step_loop.is_moving]
        for step_loop in step_loops:
            other_moves = any(loop is not step_loop for loop in moving)
            others = is_kept or self._has_runnable_jobs or other_moves
            step_loop.watch(others=others, loading=bool(self._model_changes))

    def _look_after_models(self) -> None:
        for id, step_loop in self._step_loops.items():
            if step_loop.failed and id in self._models:
                del self._models[id]
                self._publish([Failed(id, step_loop.status.problem)])
        if self._audit is None:
            return
        now, at_rest = self._clock(), self._is_at_rest
        if at_rest or self._report.has_passed(now):
            self._audit.account.trim()
        if at_rest and not (self._jobs or self._model_changes or self._audit.account.set_aside):
            self._audit.check(now)

    def _note_load_error(self, error: Exception) -> Exception:
        note_job_error(self.faults, self._clock, self._shorten, error)
        return error

    def _shorten(self) -> None:
        for loop in self._step_loops.values():
            loop.instance.halve_dispatches()

    def _publish_reports(self) -> None:
        self.beat = now = self._clock()
        if not (self._report.has_passed(now) or self._is_at_rest):
            return
        self._report.begin(now)
        self.cold = self._report_cold()
        if self._audit is not None:
            watches = [loop.instance.watch for loop in self._step_loops.values()]
            guards = [watch.guard for watch in watches if watch is not None]
            self.memory = self._audit.report(guards, self.census.unloaded)

    @property
    def _has_runnable_jobs(self) -> bool:
        """Whether a job does not wait for memory."""
        waiting = self._audit.account.waiting if self._audit is not None else ()
        return len(self._jobs) > len(waiting)

    @property
    def _is_at_rest(self) -> bool:
        for step_loop in self._step_loops.values():
            if not (step_loop.is_at_rest or step_loop.failed):
                return False
        return True

    def _take_messages(self, *, wait: bool) -> None:
        try:
            if wait:
                jobs = len(self._jobs)
                seconds = _CLAIM_BEAT_SECONDS / jobs if jobs else _IDLE_BEAT_SECONDS
                self._act_on(self.inbox.get(timeout=seconds))
            while True:
                self._act_on(self.inbox.get_nowait())
        except Empty:
            return

    def _give_back_at_rest(self, *, busy: bool) -> None:
        now = self._clock()
        if busy:
            self._rest_at = now + _REST_SECONDS
        elif now >= self._rest_at:
            device.give_back()
            self._rest_at = math.inf

    def _wait_for_announced(self) -> None:
        """Prefill from rest waits for announced requests: short prompts are cheaper together."""
        now = self._clock()
        end, quiet_until = now + _GATHER_SECONDS, now + _QUIET_SECONDS
        while now < min(end, quiet_until):
            schedulers = [loop.instance.scheduler for loop in self._step_loops.values()]
            if any(scheduler.queues.is_computing for scheduler in schedulers):
                return
            if not any(scheduler.waiting_tokens for scheduler in schedulers):
                return
            may_come = self._count_expected() > 0
            with suppress(Empty):
                self._act_on(self.inbox.get(timeout=_GATHER_POLL_SECONDS))
                may_come = True
            now = self._clock()
            if may_come:
                quiet_until = now + _QUIET_SECONDS

    def _act_on(self, message: Inbound) -> None:
        match message:
            case Submit(id, request):
                step_loop = self._step_loops.get(id)
                if step_loop is None:
                    self._publish(end_events(request, _GONE))
                else:
                    step_loop.order.set_part(part_of(id, request.owner, self._clients_of_users()))
                    step_loop.admit(request)
            case Cancel(id, request_id, index):
                if id in self._step_loops:
                    self._step_loops[id].cancel(request_id, index)
            case EngineCall(act, answer):
                self._call(act, answer)
            case StartJob():
                self._start_job(message)
            case LoadModel(id, work, answer, name):
                self._model_changes.add(self._load_model(id, work, name), answer)
            case UnloadModel(id, seconds, answer):
                self._model_changes.add(self._unload_model(id, seconds), answer)
            case Stop(drain_seconds):
                self._stopping = True
                self._drain_seconds = drain_seconds
            case Wake():
                pass

    def _call(self, act: Callable[[], object], answer: Future[object]) -> None:
        result = guarded(act)
        for step_loop in self._step_loops.values():
            step_loop.ask_for_turn()
        settle(answer, result)

    def _start_job(self, job: StartJob) -> None:
        work = guarded(lambda: job.make(self.model(job.model)))
        if isinstance(work, Crash):
            settle(job.answer, work)
        else:
            self._jobs.add(work, job.answer, job.client)

    def model(self, id: ModelId) -> Any:
        """Raises Unavailable. mlx thread."""
        if id not in self._models:
            raise Unavailable(_GONE)
        return self._models[id]

    # -- models come and go --------------------------------------------------------------

    def _load_model(self, id: ModelId, work: Work[Removable], name: str) -> Work[None]:
        try:
            model = yield from work
        finally:
            if id not in self._models:
                self._give_back_memory()  # frees a failed load; otherwise little
        self._models[id] = model
        if isinstance(model, ModelInstance):
            model.faults = self.faults
            step_loop = self._step_loops[id] = StepLoop(model, self._publish, self._clock)
            self.census.add(id, name, step_loop)

    def _unload_model(self, id: ModelId, seconds: float) -> Work[None]:
        step_loop = self._step_loops.get(id)
        try:
            if step_loop is not None:
                step_loop.finish_ahead()
                step_loop.end("the model was unloaded")
                yield from step_loop.instance.tiers.write_before_close(seconds)
        finally:
            self._remove_model(id)
            del step_loop  # so that its memory can be freed
            self._give_back_memory()

    def _remove_model(self, id: ModelId) -> None:
        step_loop = self._step_loops.pop(id, None)
        model = step_loop.instance if step_loop is not None else self._models.get(id)
        self._models.pop(id, None)
        if model is not None:
            self.census.remove(id)
            crash = guarded(model.leave)
            if isinstance(crash, Crash):
                _log.error("a model left disorder behind", exc_info=crash.error)

    def _give_back_memory(self) -> None:
        heap.collect_cycles()  # models and their caches hold each other
        device.give_back()

    # -- the end -------------------------------------------------------------------------

    def _end(self) -> None:
        why = "the server is shutting down"
        for step_loop in self._step_loops.values():
            step_loop.end(why)
        self._jobs.end(Unavailable(why))
        self._model_changes.end(Unavailable(why))
        while not self.inbox.empty():
            message = self.inbox.get_nowait()
            if isinstance(message, EngineCall | StartJob | LoadModel | UnloadModel):
                message.answer.cancel()
            if isinstance(message, Submit):
                self._publish(end_events(message.request, why))
        self._drain_cold_tier(self._clock() + self._drain_seconds)

    def _drain_cold_tier(self, end: float) -> None:
        """Write all models' blocks to the cold tier. A part of the time is kept for closing it."""
        end_of_writes = end - min(_CLOSING_SECONDS, self._drain_seconds / 2)
        for step_loop in self._step_loops.values():
            seconds = end_of_writes - self._clock()
            crash = guarded(finish, step_loop.instance.tiers.write_before_close(seconds))
            if isinstance(crash, Crash):
                _log.error("the prefix cache could not be kept", exc_info=crash.error)
        self._close_cold_tier(end - self._clock())
