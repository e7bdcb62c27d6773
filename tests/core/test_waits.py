"""The third law of liveness: nobody waits longer than it is told, which is what came before at its
share of the time.

Random worlds of two keys that send short, medium and long prompts, at times more than can be read;
some of them leave.
Memory and rows are never short here: what they do is tests/engine/test_liveness.py's matter.
"""

import random
from dataclasses import dataclass, replace

import pytest

from omlx_server.core.request import Request, RequestId, SamplingParams
from omlx_server.core.scheduler.limits import Limits
from omlx_server.core.scheduler.order import SIZES, Fairness, Shares
from tests.core.clocked import Clocked, Pace
from tests.core.simulator import make_request

WORLDS = 30
CHUNK = 8
LEAVE = 0.1
LIMITS = Limits(512, 1000, prefill_chunk_tokens=CHUNK, max_batched_tokens=CHUNK, patience=0.0)
SECONDS = 0.1  # of a token; of a chunk 0.8
DEPTHS = (0.0, SECONDS / 20)  # so much longer it takes for each token before it


class Late(AssertionError):
    """Somebody waited beyond the bound."""


@dataclass
class World:
    """Until when the first token of each request had to come."""

    run: Clocked
    bounds: dict[str, float]

    def send(self, request: Request) -> None:
        self.run.send(request)
        within = self.run.scheduler.bound(request, self.run.now)
        assert within > 0
        self.bounds[request.id] = self.run.now + within

    def leave(self, name: str) -> None:
        """A client goes, whatever it has heard."""
        del self.bounds[name]
        self.run.scheduler.cancel(RequestId(name))

    def check(self) -> None:
        for name, until in self.bounds.items():
            come = self.run.times.get((name, 0), [self.run.now])[0]
            if come > until:
                raise Late(f"{name} came after {come:.0f} s, not {until:.0f}")


def prompt(rng: random.Random, number: int, now: float, weights: list[float]) -> Request:
    [longest] = rng.choices((CHUNK, 8 * CHUNK, 40 * CHUNK), weights)
    length = rng.randint(max(2, longest // 4), longest)
    owner = rng.choice((b"a", b"a", b"b"))
    salt, choices = b"%d" % number, rng.choice((1, 1, 1, 2, 4))
    request = make_request(f"{number}", length, 1, owner=owner, arrived=now, salt=salt, n=choices)
    return replace(request, sampling=SamplingParams(max_tokens=rng.choice((1, 1, 9))))


def lived(seed: int) -> World:
    """A world from its beginning to the last answer."""
    rng = random.Random(seed)
    pace = Pace(token=SECONDS, decode=0.0001, depth=rng.choice(DEPTHS))
    world = World(Clocked(LIMITS, pace), {})
    run, weights = world.run, [rng.random() ** 3 + 0.01 for _ in SIZES]
    pause = rng.choice((0.3, 0.8, 3.0))
    for number in range(30):  # the pace is known afterwards
        run.send(make_request(f"first{number}", 80, 1, salt=b"first%d" % number))
        run.finish_turns()
    due = run.now
    for number in range(rng.choice((20, 200))):
        due += rng.expovariate(1 / pause)
        while run.now < due and run.scheduler.has_work:
            run.turn()
        run.now = max(run.now, due)
        world.send(prompt(rng, number, run.now, weights))
        if rng.random() < LEAVE:
            world.leave(rng.choice(list(world.bounds)))
    run.finish_turns()
    world.check()
    return world


@pytest.mark.parametrize("seed", range(WORLDS))
def test_nobody_waits_longer_than_what_came_before_takes(seed: int) -> None:
    world = lived(seed)
    assert world.bounds
    assert all((name, 0) in world.run.times for name in world.bounds)


def test_a_long_prompt_is_told_what_its_depth_takes_where_short_ones_were_read() -> None:
    world = World(Clocked(LIMITS, Pace(token=SECONDS, decode=0.0001, depth=DEPTHS[1])), {})
    for number in range(30):
        world.run.send(make_request(f"first{number}", 80, 1, salt=b"%d" % number))
        world.run.finish_turns()
    world.send(make_request("deep", 1600, 1))
    world.run.finish_turns()
    world.check()


FLAWS = {
    "a share that is forgotten": (Shares, "had"),
    "a key whose time is not counted": (Fairness, "give"),
}


@pytest.mark.parametrize("flaw", FLAWS)
def test_planted_flaws_are_found(monkeypatch: pytest.MonkeyPatch, flaw: str) -> None:
    owner, method = FLAWS[flaw]
    monkeypatch.setattr(owner, method, lambda *given: None)
    with pytest.raises(Late):
        for seed in range(10 * WORLDS):
            lived(seed)
