"""The third law of liveness: nobody waits longer than what came before takes at its share.

Random worlds of two keys that send short, medium and long prompts, at times more than can be read.
Memory and rows are never short here: what they do is tests/engine/test_liveness.py's matter.
"""

import random
from dataclasses import dataclass, replace

import pytest

from omlx_server.core.fairness import Fairness
from omlx_server.core.limits import Limits
from omlx_server.core.request import Request, SamplingParams
from omlx_server.core.share import Shares
from tests.core.clocked import Clocked, Pace
from tests.core.simulator import make_request

WORLDS = 30
CHUNK = 8
LIMITS = Limits(512, 1000, prefill_chunk_tokens=CHUNK, max_batched_tokens=CHUNK)
SECONDS = 0.1  # of a token; of a chunk 0.8
PARTS = LIMITS.size_shares
CAPS = (CHUNK, 8 * CHUNK, 1 << 30)
"""So much of a prompt is read as a short, a medium, a long one, at most."""
KEYS = 2
# Whole turns, what a size and a key may have had in advance (core/share.py, core/fairness.py).
SLACK = KEYS * (10.0 * len(PARTS) + 5.0 + 10 * CHUNK * SECONDS)


class Late(AssertionError):
    """Somebody waited beyond the bound."""


@dataclass
class World:
    """`first` token of each request, and until when it had to come."""

    run: Clocked
    bounds: dict[str, float]

    def send(self, request: Request) -> None:
        older = [
            prefill
            for prefill in (*self.run.scheduler._roster.waiting, *self.run.scheduler._roster.active)
            if prefill.request.owner == request.owner
        ]
        own = len(request.tokens) - 1
        bound = SLACK
        for size, part in enumerate(PARTS):
            before = sum(min(prefill.remaining, CAPS[size]) for prefill in older)
            mine = min(own, CAPS[size]) if size == 0 or own > CAPS[size - 1] else 0
            bound += KEYS * (before + mine) * SECONDS / part if mine else 0.0
        self.bounds[request.id] = self.run.now + bound
        self.run.send(request)

    def check(self) -> None:
        for name, until in self.bounds.items():
            come = self.run.times.get((name, 0), [self.run.now])[0]
            if come > until:
                raise Late(f"{name} came after {come:.0f} s, not {until:.0f}")


def prompt(rng: random.Random, number: int, now: float, weights: list[float]) -> Request:
    [longest] = rng.choices((CHUNK, 8 * CHUNK, 40 * CHUNK), weights)
    length = rng.randint(max(2, longest // 4), longest)
    owner = rng.choice((b"a", b"a", b"b"))
    request = make_request(f"{number}", length, 1, owner=owner, arrived=now, salt=b"%d" % number)
    return replace(request, sampling=SamplingParams(max_tokens=1))


def lived(seed: int) -> World:
    """A world from its beginning to the last answer."""
    rng = random.Random(seed)
    world = World(Clocked(LIMITS, Pace(token=SECONDS, decode=0.0001)), {})
    run, weights = world.run, [rng.random() ** 3 + 0.01 for _ in CAPS]
    pause = rng.choice((0.3, 0.8, 3.0))
    due = 0.0
    for number in range(rng.choice((20, 200))):
        due += rng.expovariate(1 / pause)
        while run.now < due and run.scheduler.has_work:
            run.turn()
        run.now = max(run.now, due)
        world.send(prompt(rng, number, run.now, weights))
    run.finish_turns()
    world.check()
    return world


@pytest.mark.parametrize("seed", range(WORLDS))
def test_nobody_waits_longer_than_what_came_before_takes(seed: int) -> None:
    world = lived(seed)
    assert len(world.run.times) == len(world.bounds)


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
