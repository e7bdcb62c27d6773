"""Random crowds of clients for the laws of turns: who sends what to a machine of which speed.

A crowd has a few clients, each with habits. It lives with the scheduler and a clock of its own, and
raises where a law is broken.
"""

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random

from omlx_server.core.prefix_cache.eviction import HotBudget
from omlx_server.core.request import Request, RequestId, SamplingParams
from omlx_server.core.scheduler.limits import SchedulerLimits
from tests.core.clocked import Clocked, Pace
from tests.core.simulator import KV, VOCAB

CHUNK = 8
_FIRST_TOKENS = 2400
WINDOW = 30.0
"""Seconds over which owners are compared."""


class Late(AssertionError):
    """Somebody waited longer than it was told."""


class Unfair(AssertionError):
    """An owner got less than half of its share."""


@dataclass(frozen=True)
class Habit:
    """What a client sends: prompts of `length` tokens at most, of which the first `shared` are the
    same each time, for answers of `answer` tokens at most and `choices`. It keeps `at_once`
    requests under way if it is `endless`, else sends one each `pause` seconds on average. With
    `invents` each has a conversation of its own. It leaves a part `leaves` of its requests."""

    length: int
    answer: int
    at_once: int = 1
    pause: float = 3.0
    shared: int = 0
    choices: int = 1
    endless: bool = False
    invents: bool = False
    leaves: float = 0.0


PERSON = Habit(length=30, answer=20, pause=4.0)
HABITS = (
    PERSON,
    Habit(length=30, answer=1, pause=1.0),
    Habit(length=300, answer=10, pause=20.0, shared=200),
    Habit(length=400, answer=40, pause=30.0, choices=2),
    Habit(length=20, answer=2, at_once=6, shared=18, endless=True),
    Habit(length=20, answer=1, at_once=10, shared=19, endless=True, invents=True),
    Habit(length=300, answer=5, at_once=4, endless=True),
    Habit(length=40, answer=100, at_once=12, endless=True, invents=True),
    Habit(length=60, answer=10, at_once=3, endless=True, leaves=0.5),
)


@dataclass(eq=False)
class Client:
    name: bytes
    habit: Habit
    sent: int = 0
    due: float = 0.0
    open: set[str] = field(default_factory=set)


class Crowd:
    """One world of `clients` on a machine of a `pace`. `limits` are the scheduler's; `memory`
    bounds it in bytes, if it is not None. For `seconds` the clients send, then all is finished."""

    def __init__(
        self,
        rng: Random,
        habits: list[Habit],
        limits: SchedulerLimits,
        pace: Pace,
        memory: int | None = None,
        budget: HotBudget | None = None,
        seconds: float = 120.0,
    ) -> None:
        self.run = Clocked(limits, pace, KV, memory, budget)
        self.clients = [Client(b"c%d" % number, habit) for number, habit in enumerate(habits)]
        self.part_for: Callable[[bytes], float] = lambda client: 1.0
        """Which part of the device the crowd will have with one more client."""
        self._rng = rng
        self._until = seconds
        self._first_prompts = 30 if seconds >= 2 * WINDOW else 0
        self._told: dict[str, float] = {}
        self._checks_at = math.inf
        self._had: dict[bytes, float] = {}
        self.waits: defaultdict[bytes, list[float]] = defaultdict(list)
        self._came: dict[str, tuple[bytes, float]] = {}

    def live(self) -> None:
        run = self.run
        self.begin()
        self._checks_at = run.now + WINDOW
        until = run.now + self._until
        while run.now < until:
            self.send_due()
            if not run.turn() and not run.scheduler.has_work:
                run.now = max(run.now, self.next_due)
            self.look()
        self._checks_at = math.inf  # nobody sends any more
        run.finish_turns()
        self.end()

    def begin(self) -> None:
        self._warm_up()
        for client in self.clients:
            client.due = self.run.now + self._rng.expovariate(1 / client.habit.pause)

    def send_due(self) -> None:
        for client in self.clients:
            self._send_due(client)

    @property
    def next_due(self) -> float:
        """When the next client sends."""
        return min(client.due for client in self.clients)

    def end(self) -> None:
        """Raises if somebody was late, or never answered."""
        self.look()
        left = [name for name in self._told if (name, 0) not in self.run.times]
        assert not left, f"never answered: {left}"

    def _warm_up(self) -> None:
        """The pace is known afterwards."""
        for number in range(self._first_prompts):
            sampling = SamplingParams(max_tokens=1)
            tokens = tuple(self._rng.randrange(VOCAB) for _ in range(_FIRST_TOKENS // 30))
            self.run.send(Request(RequestId(f"first{number}"), tokens, sampling))
            self.run.finish_turns()
        if not self._first_prompts:
            self.run.tell_pace(_FIRST_TOKENS)

    # -- clients -----------------------------------------------------------------------------

    def _send_due(self, client: Client) -> None:
        habit, run = client.habit, self.run
        client.open = {name for name in client.open if (name, 0) not in run.finishes}
        while len(client.open) < habit.at_once if habit.endless else client.due <= run.now:
            if not self._send(client):
                return
            client.due += self._rng.expovariate(1 / habit.pause)

    def _send(self, client: Client) -> bool:
        """False where the queue is full."""
        habit, rng, run = client.habit, self._rng, self.run
        name = f"{client.name.decode()}-{client.sent}"
        client.sent += 1
        length = max(habit.shared + 2, rng.randint(max(2, habit.length // 2), habit.length))
        head = tuple((client.name[-1] + i) % VOCAB for i in range(habit.shared))
        tail = tuple(rng.randrange(VOCAB) for _ in range(length - habit.shared))
        request = Request(
            RequestId(name),
            head + tail,
            SamplingParams(max_tokens=rng.randint(1, habit.answer)),
            n=habit.choices,
            arrived=run.now,
            owner=client.name,
            conversation=b"%d" % client.sent if habit.invents else b"",
        )
        run.scheduler.prefill_order.set_part(self.part_for(client.name))
        if run.scheduler.add(request) is not None:
            return False
        run.note_sent(request)
        told = run.scheduler.promise_first_token(request, run.now)
        assert told > 0
        self._told[name] = run.now + told
        self._came[name] = client.name, run.now
        client.open.add(name)
        if rng.random() < habit.leaves:
            run.scheduler.cancel(RequestId(name))
            client.open.remove(name)
            del self._told[name], self._came[name]
        return True

    # -- the laws ----------------------------------------------------------------------------

    def look(self) -> None:
        run = self.run
        for name, until in list(self._told.items()):
            if (name, 0) in run.times or (name, 0) in run.finishes:
                owner, came = self._came.pop(name)
                first = run.times.get((name, 0), [run.now])[0]
                self.waits[owner].append(first - came)
                del self._told[name]
                if first > until:
                    raise Late(f"{name} came {first - until:.1f} s late, after {first - came:.1f}")
            elif run.now > until:
                raise Late(f"{name} is {run.now - until:.1f} s late")
        if run.now >= self._checks_at:
            self._compare(run.now - self._checks_at + WINDOW)
            self._checks_at = run.now + WINDOW

    def _compare(self, seconds: float) -> None:
        """Compare what clients had in the last window with their shares of it: of those that had
        work all the time."""
        run = self.run
        had = {client.name: run.given(client.name) for client in self.clients}
        for client in self.clients:
            name = client.name
            busy = client.habit.endless and not client.habit.leaves
            share = seconds / len(self.clients)
            if busy and name in self._had and had[name] - self._had[name] < share / 2:
                got = had[name] - self._had[name]
                raise Unfair(f"{name!r} had {got:.1f} of {seconds:.0f} s among {len(had)}")
        self._had = had


def small(seed: int) -> Crowd:
    """A crowd of a seed that lives for a few seconds on a slow machine, so for a tenth of a second
    of ours: for the first law only."""
    rng = Random(seed)
    habits = [
        replace(habit, length=habit.length // 4 + 4, shared=habit.shared // 4, pause=1.0)
        for habit in rng.choices(HABITS, k=rng.randint(2, 4))
    ]
    rows = rng.choice((1, 2, 4))
    limits = SchedulerLimits(
        max_batch_size=rows,
        max_queue=12,
        prefill_chunk_tokens=CHUNK,
        max_batched_tokens=rng.choice((CHUNK, 4 * CHUNK)),
        decode_share=rng.choice((0.0, 0.2)),
    )
    pace = Pace(rng.choice((0.01, 0.04)), rng.choice((0.05, 0.2)), rng.choice((0.0, 0.001)))
    memory = rng.choice((None, None, 20_000, 40_000))
    habits = [replace(habit, choices=min(rows, habit.choices)) for habit in habits]
    return Crowd(rng, habits, limits, pace, memory, HotBudget(rng.choice((2_000, 1 << 30)), 0), 8.0)


def drawn(seed: int, seconds: float = 120.0) -> Crowd:
    """The crowd of a seed."""
    rng = Random(seed)
    habits = rng.choices(HABITS, k=rng.randint(1, 5))
    rows = rng.choice((1, 2, 4, 8))
    limits = SchedulerLimits(
        max_batch_size=rows,
        max_queue=64,
        prefill_chunk_tokens=CHUNK,
        max_batched_tokens=rng.choice((CHUNK, 4 * CHUNK)),
        decode_share=rng.choice((0.0, 0.2)),
    )
    pace = Pace(
        token=rng.choice((0.002, 0.01)),
        decode=rng.choice((0.005, 0.05)),
        depth=rng.choice((0.0, 0.0001)),
    )
    budget = HotBudget(rng.choice((4_000, 1 << 30)), 0)
    memory = rng.choice((None, None, 12_000, 30_000))
    habits = [habit for habit in habits if habit.choices <= rows] or [PERSON]
    return Crowd(rng, habits, limits, pace, memory, budget, seconds)
