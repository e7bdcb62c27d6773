"""Steps that fail while others refer to the keys and values of a prompt that was in them."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import pytest

from omlx_server.compute.caches import Caches
from omlx_server.core.prefix_cache.eviction import Budget
from tests.compute.cold_cache import open_tier
from tests.compute.drive import Drive, sampling
from tests.compute.oracle import is_greedy
from tests.compute.referring import SIZE, Referring, check_books
from tests.compute.warm_runs import LIMITS, tiny, tokens

BROKEN = 66
"""A token at which a prefill raises."""


class Brittle(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.inner = inner

    def __call__(self, ids: mx.array, cache: Caches | None = None) -> mx.array:
        if ids.shape[1] > 1 and (ids == BROKEN).any().item():
            raise ValueError("broken")
        logits: mx.array = self.inner(ids, cache=cache)
        return logits

    def make_cache(self) -> Caches:
        caches: Caches = self.inner.make_cache()
        return caches


def driven() -> Drive:
    loaded = tiny("llama")
    loaded = replace(loaded, model=Brittle(loaded.model))
    return Drive(loaded, LIMITS, SIZE, codec=Referring)


def whole(seed: object, count: int) -> list[int]:
    return [1 if token == BROKEN else token for token in tokens(seed, count)]


def check(drive: Drive, name: str, prompt: Sequence[int]) -> None:
    assert is_greedy(tiny("llama").model, prompt, drive.answers[f"{name}/0"]), name


def test_a_group_that_fails_costs_nobody_what_was_restored_for_it() -> None:
    """The blocks have copies of their own, which the group's caches replace before it runs."""
    drive, prompt = driven(), whole("shared", 64)
    drive.answer("first", prompt, 2)
    for payload in drive.hot.values():
        payload.detach()
    good = {name: [*prompt, *whole(name, 9)] for name in "ab"}
    for name, its_prompt in good.items():
        drive.add(name, its_prompt, sampling(5))
    drive.add("bad", [*prompt, *whole("bad", 4), BROKEN, *whole("more", 4)], sampling(5))
    drive.finish()
    assert "bad/0" not in drive.answers
    for name, its_prompt in good.items():
        check(drive, name, its_prompt)
    check_books(drive)


@pytest.mark.parametrize("own", [9, 40, 400])
@pytest.mark.parametrize("steps", [1, 3])
def test_a_prompt_that_fails_ends_nobody_who_refers_to_it(steps: int, own: int) -> None:
    """Another prompt refers to what it had computed, and is a row by then, or still being read."""
    drive, prompt = driven(), whole("shared", 32 * steps)
    bad = [*prompt, *whole("long", 200), BROKEN, *whole("more", 5)]
    drive.add("bad", bad, sampling(5))
    for _ in range(steps):
        drive.step()
    other = [*prompt, *whole("other", own)]
    drive.add("other", other, sampling(40))
    drive.finish()
    assert "bad/0" not in drive.answers and len(drive.answers["other/0"]) == 40
    check(drive, "other", other)
    check_books(drive)


def test_what_a_lost_step_takes_does_not_go_to_the_cold_tier(tmp_path: Path) -> None:
    """The blocks that only rows have kept are evicted when these end, and lost with them."""
    cold = open_tier(tmp_path)
    prompt, narrow = tokens("lost", 64), Budget(1 << 13, 0)
    drive = Drive(tiny("llama"), LIMITS, SIZE, narrow, codec=Referring, cold=cold)
    drive.add("a", prompt, sampling(30))
    while len(drive.answers.get("a/0", ())) < 9:
        drive.step()
    assert drive.instance.cache.index.in_use > narrow.nbytes
    drive.lose()
    assert not len(drive.instance.cache.index) and not drive.hot
    drive.finish()
    check(drive, "a", prompt)
    cold.close(1)
