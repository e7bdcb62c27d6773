"""The laws of liveness, held in a simulated world: everyone is answered, and nobody idles.

The engine's turns, the step_loops, the instances, the schedulers, the caches and the cold tier are
the real ones. The device, the disk and the time are pretended (tests/engine/pretend.py), so that a
world that stops says so at once: at rest, time goes on to what comes next, and where nothing comes
nobody will ever be answered.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from omlx_server.core.blocks.block import NOTHING_KEPT, PayloadId
from omlx_server.core.blocks.pins import Pins
from omlx_server.core.memory.guard import MemoryGuard
from omlx_server.core.memory.kv import StepShape
from omlx_server.core.memory.ledger import Ledger
from omlx_server.core.memory.room import within
from omlx_server.core.prefix_cache.prefix_cache import PrefixCache
from omlx_server.core.request import Rejected, Request, RequestId, TokenEvent
from omlx_server.core.scheduler.limits import SMALLEST_CHUNK
from omlx_server.core.speculation.methods import Method
from omlx_server.core.work import Work
from omlx_server.engine.memory.account import MemoryAccount, MemoryWatch
from omlx_server.engine.memory.reservations import JobRoom
from omlx_server.engine.messages import (
    Accepted,
    Cancel,
    EngineCall,
    Failed,
    Outbound,
    StartJob,
    Submit,
    Wake,
)
from omlx_server.engine.model_instance import ModelInstance
from omlx_server.engine.step_loop import StepLoop
from omlx_server.engine.thread import Engine
from omlx_server.errors import NoMemory
from omlx_server.store.cold import ColdTier
from omlx_server.store.files import Files
from omlx_server.store.reads import ReadQueue
from tests.core.eager import Eager
from tests.core.simulator import KV, right_answer
from tests.engine import worlds
from tests.engine.held import check_kept, could_go_on, crashes
from tests.engine.pretend import PretendPlanner, PretendRunner, PretendWorker
from tests.engine.worlds import Act, Arrive, Plan

_BEAT = 1.0  # at rest the engine turns as often, whatever happens
_SLOWEST = 60.0  # no prompt of a world takes so long to compute: so long nobody waits for a read
_AFRESH = 4  # so often what a request has computed may have to be computed again, on average


class Stop(AssertionError):
    """Somebody waits for ever, or longer than must be."""


class _Watch(MemoryWatch):
    """Knows of no pool, and measures nothing."""

    def begin(self, held: Ledger, features: int = 0) -> None:
        account = self.share.account
        self.share.note_others()
        self.guard.limit = account.limit
        self.guard.begin(replace(held, limit=account.limit, weights=account.weights))

    def begin_step(self) -> None:
        return

    def note_step(self, step: StepShape, now: float) -> None:
        return


class World:
    """One world from its beginning to its end; `run` raises where a law is broken."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.now = 0.0
        self.runners: list[PretendRunner] = []
        self.account = MemoryAccount(plan.memory or 1 << 40)
        self.engine = Engine(self._note, clock=lambda: self.now + self._worked_for)
        self.worker = PretendWorker(plan.fates, lambda: self.now)
        self.cold = self._cold_tier()
        self.pins = Pins()
        self.step_loops: list[StepLoop] = []
        for number in range(len(plan.layouts)):
            self._load(number)
        self.sent: list[tuple[Request, int]] = []
        self.open: set[tuple[RequestId, int]] = set()
        self.gone: set[tuple[RequestId, int]] = set()
        self.outputs: dict[tuple[RequestId, int], list[int]] = {}
        self.failed = set[int]()  # models of which clients know that they have failed
        self._failing = set[int]()
        self._could = [False] * len(self.step_loops)
        self._left = list(plan.acts)
        self._bound: float | None = None
        self.turns = 0  # those in which a model has read or decoded
        self._beat_at = _BEAT
        self._rests_since = 0.0

    def _cold_tier(self) -> ColdTier | None:
        plan = self.plan
        if plan.cold is None:
            return None
        cold = ColdTier(
            Files(Path("/nowhere")),
            b"",
            budget=plan.cold,
            queue_bytes=10_000,
            remote=None if plan.listed else _Remote(),  # type: ignore[arg-type]
            clock=lambda: self.now,
        )
        cold._worker = self.worker  # type: ignore[assignment]
        clock = lambda: self.now  # noqa: E731
        cold.reads = ReadQueue(cold.index, cold.stats, self.worker, clock)  # type: ignore[arg-type]
        cold.wake = lambda: self.engine.inbox.put(Wake())
        self.worker.wake = lambda: cold.wake()
        return cold

    def _load(self, number: int) -> None:
        plan, layout = self.plan, self.plan.layouts[number]
        hot: dict[PayloadId, Any] = {}
        runner = PretendRunner(plan.limits, layout or KV, hot.__getitem__)
        share = self.account.share(0)
        share.set_weights_and_budget(0, lambda weights: plan.hot)
        planner = PretendPlanner()
        watch = None
        if plan.memory is not None:
            watch = _Watch(MemoryGuard(plan.memory, planner, share), planner, share)

        def make_cache() -> PrefixCache:
            if layout is None:
                return PrefixCache(NOTHING_KEPT, "none", plan.hot)
            index = self.cold.index if self.cold is not None else None
            return PrefixCache(layout, f"m{number}", plan.hot, index, self.pins)

        instance = ModelInstance(
            runner,  # type: ignore[arg-type]
            plan.limits,
            make_cache,
            hot,
            self.cold if layout is not None else None,
            write_through=plan.write_through,
            watch=watch,
            speculation=Eager(Method.DRAFT if number else None),
        )
        step_loop = StepLoop(instance, self._note, lambda: self.now)
        self.engine._models[number] = instance
        self.engine._step_loops[number] = step_loop
        self.runners.append(runner)
        self.step_loops.append(step_loop)

    # -- the run -------------------------------------------------------------------------

    def run(self) -> None:
        with crashes() as crashed:
            while self._left or self._has_work or not self._is_at_rest:
                self._turn()
                if crashed:
                    raise Stop("a turn has crashed") from crashed[0]
            self._turn_engine()  # a beat: what was promised is not any more
        self._check_end()

    @property
    def _has_work(self) -> bool:
        engine = self.engine
        jobs = bool(engine._jobs) or not engine.inbox.empty()
        return jobs or any(step_loop.has_work for step_loop in self.step_loops) or bool(self.open)

    @property
    def _is_at_rest(self) -> bool:
        engine = self.engine
        return engine._is_at_rest and not engine._jobs and engine.inbox.empty()

    @property
    def _worked_for(self) -> float:
        """Seconds that this turn has taken."""
        return sum(runner.seconds for runner in self.runners)

    def _turn(self) -> None:
        resting = self._is_at_rest
        if resting:
            if any(could_go_on(step_loop) for step_loop in self.step_loops):
                raise Stop("at rest while somebody could go on")
            self._go_on_to_what_comes_next()
        self._act()
        self.worker.work()
        resting = resting and self._is_at_rest  # nothing has come that wakes it
        if resting and self.worker.has_read and any(d.has_work for d in self.step_loops):
            raise Stop("the disk has answered, and nobody was woken")
        if resting and self.now < self._beat_at:
            return
        expected = not resting or self._something_is_late()
        self._turn_engine()
        if not expected and not self._is_at_rest:
            raise Stop("it rested, and only the beat woke it")
        if not self._left:
            self._check_bound()

    def _go_on_to_what_comes_next(self) -> None:
        ends = [self._left[0][0]] if self._left else []
        ends += [self.worker.next_end] if self.worker.next_end is not None else []
        if not ends and self.now > self._rests_since + _SLOWEST:
            raise Stop(f"nothing comes any more, and these wait: {sorted(self.open)}")
        self.now = max(self.now, min([self._beat_at, *ends]))

    def _something_is_late(self) -> bool:
        deadlines = [request.deadline for request, _ in self.sent]
        overdue = any(d is not None and self.now - _BEAT <= d <= self.now for d in deadlines)
        reads = self.cold.reads if self.cold is not None else None
        waits = [*(w for _, w in reads._reading.values()), *reads._asking.values()] if reads else []
        return overdue or any(wait.end < self.now for wait in waits)

    def _turn_engine(self) -> None:
        """As `Engine._turn`, which also waits for messages on a clock of its own."""
        engine = self.engine
        engine._take_messages(wait=False)
        before, jobs = [runner.worked for runner in self.runners], bool(engine._jobs)
        could = [could_go_on(step_loop) for step_loop in self.step_loops]
        engine._turn_instances()
        engine._look_after_models()
        self.account.trim()
        for number, step_loop in enumerate(self.step_loops):
            # One has the device at a time.
            idle = not jobs and [runner.worked for runner in self.runners] == before
            if idle and self._could[number] and could[number] and could_go_on(step_loop):
                raise Stop("two steps were empty while somebody could go on")
            self._could[number] = idle and could[number]
        self.turns += any(r.worked > b for r, b in zip(self.runners, before, strict=True))
        self.now += 0.001 + self._worked_for
        for runner in self.runners:
            runner.seconds = 0.0
        self._beat_at = self.now + _BEAT
        if not self._is_at_rest:
            self._rests_since = self.now

    # -- what happens --------------------------------------------------------------------

    def _act(self) -> None:
        """All that is due."""
        while self._left and self._left[0][0] <= self.now:
            _, act = self._left.pop(0)
            if self._left:  # the pause before the next one begins now
                self._left[0] = self.now + self._left[0][0], self._left[0][1]
            self._do(act)
        self.failed |= self._failing

    def _do(self, act: Act) -> None:
        inbox = self.engine.inbox
        match act:
            case Arrive(request, model) if model not in self.failed:
                inbox.put(Submit(model, self._arriving(request, model)))
            case worlds.Leave(number, index) if number < len(self.sent):
                request, model = self.sent[-1 - number]
                gone = range(request.n) if index is None else [index]
                self.gone |= {(request.id, choice) for choice in gone}
                self.open -= self.gone
                inbox.put(Cancel(model, request.id, index))
            case worlds.Change():
                inbox.put(EngineCall(lambda: self._change(act), Future()))
            case worlds.Fault(kind, guilty, model):
                self.runners[model].faults.append(kind)
                if guilty and self.sent:
                    self.runners[model].guilty.add(self.sent[-1][0].id)
            case worlds.Work(nbytes, turns):
                inbox.put(StartJob(0, lambda _: self._job(nbytes, turns), b"", Future()))
            case worlds.Reset(model, cold):
                instance = self.step_loops[model].instance
                inbox.put(
                    EngineCall(
                        instance.tiers.leave_cold if cold else instance.reset_cache, Future()
                    )
                )
            case worlds.Keep(number) if number < len(self.sent):
                request, model = self.sent[-1 - number]
                instance = self.step_loops[model].instance
                inbox.put(
                    EngineCall(partial(instance.pin, request.tokens, request.salt, "m"), Future())
                )

    def _arriving(self, request: Request, model: int) -> Request:
        deadline = None if request.deadline is None else self.now + request.deadline
        request = replace(request, arrived=self.now, deadline=deadline)
        self.sent.append((request, model))
        return request

    def _change(self, act: worlds.Change) -> None:
        limits = replace(self.plan.limits, max_batch_size=act.rows, decode_share=act.share)
        if self.plan.memory is not None:
            self.account.limit = act.memory
        for step_loop in self.step_loops:
            step_loop.instance.change_limits(limits, write_through=self.plan.write_through)

    def _job(self, nbytes: int, turns: int) -> Work[None]:
        room = JobRoom(self.account.shares[0])

        def work() -> Iterator[None]:
            for _ in range(turns):
                yield

        try:
            yield from within(room, nbytes, work())  # type: ignore[arg-type]
        except NoMemory:
            return

    def _note(self, messages: Sequence[Outbound]) -> None:
        for message in messages:
            match message:
                case Accepted(id):
                    request = next(r for r, _ in self.sent if r.id == id)
                    self.open |= {(id, choice) for choice in range(request.n)} - self.gone
                case Rejected(id):
                    assert not any(name == id for name, _ in self.open), "refused when accepted"
                case Failed(model):
                    self._failing.add(model)
                case TokenEvent():
                    self._note_token(message)

    def _note_token(self, event: TokenEvent) -> None:
        key = event.request_id, event.index
        if key not in self.open:
            return  # its client is gone
        if event.token is not None:
            self.outputs.setdefault(key, []).append(event.token)
        if event.finish:
            self.open.remove(key)

    # -- the laws ------------------------------------------------------------------------

    def _check_bound(self) -> None:
        """When no more happens, all end within so many steps that decode or read: each choice is
        read in pieces of the smallest size that the memory may force, then decodes its tokens. One
        after the other that is all the work there is; `_AFRESH` times of it, because what is
        preempted or lost is computed again."""
        if self._bound is None:
            most = sum(self._work(request) for request, _ in self.sent if self._is_open(request))
            self._bound = self.turns + _AFRESH * most + 10
        if self.turns > self._bound:
            raise Stop(f"no end after {self.turns} steps: {sorted(self.open)}")

    def _is_open(self, request: Request) -> bool:
        return any(id == request.id for id, _ in self.open)

    def _work(self, request: Request) -> int:
        smallest = min(SMALLEST_CHUNK, self.plan.limits.prefill_chunk_tokens)
        tokens = request.sampling.max_tokens
        reads = (len(request.tokens) + tokens) // smallest + 2
        return request.n * (reads + tokens)

    def _check_end(self) -> None:
        """Nothing is leased, claimed, promised or set aside when nobody is there any more."""
        assert not self.open, f"never answered: {self.open}"
        for (id, choice), output in self.outputs.items():
            request = next(r for r, _ in self.sent if r.id == id)
            right, _ = right_answer(request, choice)
            assert output == right[: len(output)], "a wrong answer"
        for step_loop, runner in zip(self.step_loops, self.runners, strict=True):
            assert not runner.device.rows and not runner.device.prefills, "rows were left behind"
            assert not step_loop._unfinished, "the step_loop still waits for an end"
            assert not step_loop.instance.reserved, "memory is promised to nobody"
            step_loop.instance.check_invariants()
            check_kept(step_loop.instance)
        assert not self.account.set_aside and not self.account.waiting
        while self.worker.next_end is not None:
            self.now = max(self.now, self.worker.next_end)
            self.worker.work()
        if self.cold is not None:
            self.cold.collect()
            held = sum(entry.leases for entry in self.cold.index.entries())
            assert held <= self.worker.hung, "a file is held that nobody reads"

    # A law about waits within a class belongs here, and is fed by `_note_token`: who of a class
    # came first, and how much those of that class got who came later.


class _Remote:
    """A medium that can't be listed, and is never asked but through the worker."""
