"""A program eats the machine's memory beside a busy server: `scripts/campaign pressure`.

In three phases: the hot tier fills; a program takes memory until the pressure is critical; it ends,
and the hot tier comes back. Engine, account and watch are the real ones; each answer is compared
with a cold forward. The machine is a real memory group of Linux in which both programs are, or one
that is only told.
"""

import asyncio
import os
import subprocess
import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median

from omlx_server.compute.hardware import device, heap
from omlx_server.compute.hardware.machine import read_machine
from omlx_server.compute.model.loader import LoadedModel
from omlx_server.core.memory.ledger import pool_bytes
from omlx_server.core.memory.pressure import MachineReading, short_bytes
from omlx_server.engine.client.machine_watch import MachineWatch
from omlx_server.engine.memory.account import MemoryAccount
from omlx_server.engine.model_instance import ModelInstance
from tests.campaigns import soak
from tests.engine.alone import Alone
from tests.tiny_models import load_tiny

MB = 1 << 20
_GROUPS = Path("/sys/fs/cgroup/memory")
_LIMIT = 3 << 30
_SLICE = 16 * MB
# A look at the machine, which counts as a second.
_LOOK_SECONDS = 0.03
_MOST_SECONDS = 300.0
_MOST_LOOKS = 600
_SLACK = 1.05
_SAMPLES = 9


def tiny() -> LoadedModel:
    """One of 16 KB a token, so that its hot tier is large beside Python."""
    return load_tiny("llama", num_hidden_layers=2, num_key_value_heads=4, head_dim=256)


class Machine(ABC):
    """What the server reads, and what others take of it."""

    @abstractmethod
    def read(self) -> MachineReading: ...
    @abstractmethod
    def eat(self, nbytes: int) -> None: ...
    @abstractmethod
    def spit(self) -> None: ...
    def end(self) -> None:
        self.spit()


class ToldMachine(Machine):
    """All but this process's memory is only said to be taken."""

    def __init__(self) -> None:
        self._eaten = 0
        self._total = heap.resident_bytes() + 4096 * MB

    def read(self) -> MachineReading:
        available = self._total - self._eaten - heap.resident_bytes()
        return MachineReading(self._total, max(0, available))

    def eat(self, nbytes: int) -> None:
        self._eaten += nbytes

    def spit(self) -> None:
        self._eaten = 0


_EATER = """
import sys
held = []
for line in sys.stdin:
    held.append(bytearray(b"1") * int(line))
    print("eaten", flush=True)
"""


class GroupMachine(Machine):
    """A memory group with a limit: of this process, and a program that takes what it is told."""

    def __init__(self) -> None:
        self._group = _GROUPS / f"omlx-{os.getpid()}"
        self._group.mkdir()
        (self._group / "memory.limit_in_bytes").write_text(str(_LIMIT))
        (self._group / "cgroup.procs").write_text(str(os.getpid()))
        self._eater: subprocess.Popen[str] | None = None

    def read(self) -> MachineReading:
        return read_machine()

    def eat(self, nbytes: int) -> None:
        if self._eater is None:
            command = [sys.executable, "-c", _EATER]
            pipe = subprocess.PIPE
            self._eater = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        assert self._eater.stdin and self._eater.stdout
        self._eater.stdin.write(f"{nbytes}\n")
        self._eater.stdin.flush()
        self._eater.stdout.readline()

    def spit(self) -> None:
        if self._eater is not None:
            self._eater.communicate()
            self._eater = None

    def end(self) -> None:
        super().end()
        (_GROUPS / "cgroup.procs").write_text(str(os.getpid()))
        self._group.rmdir()


def has_groups() -> bool:
    return sys.platform == "linux" and os.access(_GROUPS / "cgroup.procs", os.W_OK)


@dataclass(slots=True)
class Outcome:
    """Bytes of the hot tier and of the process, before, under critical pressure and afterwards.
    `given_up` is by the account."""

    work: soak.Outcome = field(default_factory=soak.Outcome)
    hot: list[int] = field(default_factory=list)
    resident: list[int] = field(default_factory=list)
    given_up: int = 0
    levels: list[int] = field(default_factory=list)
    answers_under_pressure: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def rises(self) -> int:
        return sum(new > old for old, new in pairwise([0, *self.levels]))

    @property
    def is_right(self) -> bool:
        if self.problems or len(self.hot) < 3:
            return False
        gave_way = self.resident[1] <= (self.resident[0] - self.given_up) * _SLACK
        gave_way = gave_way and self.hot[1] < 0.5 * self.hot[0]
        calm = self.rises <= 2 and self.levels[-1] == 0
        served = self.answers_under_pressure > 0
        return gave_way and calm and served and self.work.is_right

    def __str__(self) -> str:
        hot, resident = ([n // MB for n in values] for values in (self.hot, self.resident))
        return (
            f"hot tier {hot} MB, resident {resident} MB, {self.given_up // MB} MB given up, "
            f"{self.rises} rises in {len(self.levels)} looks, {self.answers_under_pressure} "
            f"answers under critical pressure; {self.problems}; {self.work}"
        )


def campaign(room: int, *, grouped: bool, seed: int = 1) -> Outcome:
    machine = GroupMachine() if grouped else ToldMachine()
    outcome = Outcome()
    load = soak.Load(room=room, seconds=_MOST_SECONDS, clients=4, longest=600, answer=12)
    try:
        clients = _Clients(load, outcome, machine, seed)
        asyncio.run(soak.serve(tiny, load, outcome.work, clients))
    finally:
        machine.end()
    return outcome


class _Clients(soak.Questions):
    """They ask until all phases are over."""

    def __init__(self, load: soak.Load, outcome: Outcome, machine: Machine, seed: int) -> None:
        super().__init__(load, outcome.work, seed)
        self._seen = outcome
        self._machine = machine
        self._room = load.room
        self._looks = 0.0

    async def run(self, engine: Alone) -> None:
        account = await engine.ask(_account_of)
        device.limit_memory(pool=pool_bytes(account.limit), wired=0)
        watch = MachineWatch(
            engine.whole, account, lambda: True, self._machine.read, lambda: self._looks
        )
        self._account = account
        looking = asyncio.create_task(self._look_on(watch))
        phases = asyncio.create_task(self._phases(engine))
        phases.add_done_callback(lambda _: self.stop())
        try:
            await super().run(engine)
            await phases
        finally:
            looking.cancel()
            phases.cancel()

    async def _look_on(self, watch: MachineWatch) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            self._looks += 1
            await watch.look()
            self._seen.levels.append(self._account.pressure.level)

    async def _phases(self, engine: Alone) -> None:
        seen, account = self._seen, self._account
        await self._until_hot(engine, 0.5 * self._room, "the hot tier did not fill")
        await self._measure(engine)
        await self._eat()
        answers = seen.work.answers
        await asyncio.sleep(40 * _LOOK_SECONDS)
        seen.answers_under_pressure = seen.work.answers - answers
        held = self._held
        await self._measure(engine)
        seen.given_up = held - self._held
        self._machine.spit()
        for _ in range(_MOST_LOOKS):
            if account.pressure.is_none:
                break
            await asyncio.sleep(_LOOK_SECONDS)
        else:
            seen.problems.append(f"it stayed: {account.pressure}")
        await self._until_hot(engine, 0.97 * seen.hot[0], "the hot tier did not come back")
        await self._measure(engine)

    async def _eat(self) -> None:
        """Take memory until the pressure is critical."""
        for _ in range(_MOST_LOOKS):
            if self._account.pressure.is_critical:
                return
            reading = self._machine.read()
            available = reading.available or 0
            if available > short_bytes(reading.total) / 2:
                self._machine.eat(max(_SLICE, available // 8))
            await asyncio.sleep(_LOOK_SECONDS)
        self._seen.problems.append("the pressure never was critical")

    async def _until_hot(self, engine: Alone, nbytes: float, problem: str) -> None:
        for _ in range(_MOST_LOOKS):
            if await engine.ask(_hot_bytes) >= nbytes:
                return
            await asyncio.sleep(_LOOK_SECONDS)
        self._seen.problems.append(problem)

    async def _measure(self, engine: Alone) -> None:
        """Note medians: what runs comes and goes."""
        self._seen.hot.append(await engine.ask(_hot_bytes))
        held, resident = list[int](), list[int]()
        for _ in range(_SAMPLES):
            await asyncio.sleep(_LOOK_SECONDS)
            held.append((await engine.ask(_account_of)).held().held)
            resident.append(heap.resident_bytes())
        self._held = int(median(held))
        self._seen.resident.append(int(median(resident)))


def _account_of(instance: ModelInstance) -> MemoryAccount:
    assert instance.watch is not None
    return instance.watch.share.account


def _hot_bytes(instance: ModelInstance) -> int:
    return instance.cache.index.nbytes
