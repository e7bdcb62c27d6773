"""Steps that fail while others refer to the keys and values of a prompt that was in them."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import pytest

from omlx_server.compute import caches as cache_ops
from omlx_server.compute.caches import Caches
from omlx_server.compute.codecs.base import CacheRow
from omlx_server.compute.model.pairing import paired
from omlx_server.compute.prefill import Prefiller
from omlx_server.core.prefix_cache.eviction import HotBudget
from omlx_server.core.request import RequestId
from omlx_server.core.speculation.methods import Mode
from omlx_server.core.step import Chunk, Join, SequenceId
from tests.compute.cold_cache import open_tier
from tests.compute.drive import Drive, sampling
from tests.compute.oracle import is_greedy
from tests.compute.referring import SIZE, Referring, check_books
from tests.compute.warm_runs import LIMITS, tiny, tokens
from tests.sweeps import sweep

pytestmark = pytest.mark.usefixtures("either_order")

BROKEN = 66
"""A token at which a prefill raises."""


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Records of failures hold caches, whose books are checked."""
    caplog.set_level(logging.CRITICAL, "omlx_server.compute.runner")


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


def driven(*, pair: bool = False) -> Drive:
    """With `pair` another model drafts, which is right now and then."""
    loaded = tiny("llama")
    loaded = replace(loaded, model=Brittle(loaded.model))
    loaded = paired(loaded, tiny("llama")) if pair else loaded
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


def test_a_member_of_a_group_that_fails_keeps_what_it_had_read_before() -> None:
    """The last chunk of a long prompt is read with short prompts."""
    drive, prompt = driven(), whole("long", 53)
    drive.add("long", prompt, sampling(5))
    drive.step()
    for name in ("bad", "also bad"):
        drive.add(name, [*whole(name, 10), BROKEN, *whole("more", 9)], sampling(5))
    drive.finish()
    assert {"bad/0", "also bad/0"}.isdisjoint(drive.answers)
    check(drive, "long", prompt)
    assert drive.answer("again", prompt, 5) == drive.answers["long/0"]
    assert drive.admitted["again"].cached == 52
    check_books(drive)


@pytest.mark.parametrize(("steps", "own"), sweep([1, 3], [9, 40, 400]))
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


# A draft is read in one forward, which must not be one that raises.
UNBROKEN = sampling(40, logit_bias=((BROKEN, -100.0),))


@pytest.mark.parametrize(("steps", "own", "speculation"), sweep([1, 3], [9, 40], ["draft", "off"]))
def test_so_it_does_where_a_draft_model_is_behind(steps: int, own: int, speculation: Mode) -> None:
    """Beside the one that refers to it another row was there before, and one comes with it."""
    drive, prompt = driven(pair=True), whole("shared", 32 * steps)
    good = {name: whole(name, 20) for name in ("before", "with")}
    good["other"] = [*prompt, *whole("other", own)]
    drive.add("before", good["before"], UNBROKEN, speculation=speculation)
    drive.step()
    drive.add("bad", [*prompt, *whole("long", 200), BROKEN, *whole("more", 5)], sampling(5))
    for _ in range(steps):
        drive.step()
    for name in ("other", "with"):
        drive.add(name, good[name], UNBROKEN, speculation=speculation)
    drive.finish()
    alone = driven()
    for name, its_prompt in good.items():
        alone.add(name, its_prompt, UNBROKEN, speculation="off")
        alone.finish()
    assert drive.answers == alone.answers and len(alone.answers) == 3
    check_books(drive)


@pytest.mark.parametrize("members", [1, 2])
@pytest.mark.parametrize("later", [False, True])
def test_what_a_failed_forward_has_written_to_is_lost(members: int, *, later: bool) -> None:
    """Unless the caches that went into a group are still there as they were."""
    model = Brittle(tiny("llama").model)
    codec = Referring.of(model.inner, SIZE)
    assert codec is not None
    caches = cache_ops.new_caches(model)
    model(mx.array([[1] * 16]), cache=caches)
    block = codec.cut_block(caches, CacheRow(0, 16), 0, SIZE)
    prefiller = Prefiller(model, batchable=True)
    ids = [SequenceId(RequestId(name), 0) for name in "ab"[:members]]
    if later:
        prefiller.restore_later(ids[0], lambda: caches)
    else:
        prefiller.restore(ids[0], caches)
    params = sampling(5)
    chunks = [
        Chunk(id, 16, (1, 2, BROKEN), (Join(id, (1, 2, BROKEN, 3), 4, params),)) for id in ids
    ]
    with pytest.raises(ValueError, match="broken"):
        prefiller.run(chunks)
    assert block.is_lost is (members > 1)
    prefiller.fail(ids, together=members > 1)
    assert block.is_lost is (members == 1 or later)
    assert prefiller.count == (members > 1)


def test_what_a_lost_step_takes_does_not_go_to_the_cold_tier(tmp_path: Path) -> None:
    """The blocks that only rows have kept are evicted when these end, and lost with them."""
    cold = open_tier(tmp_path)
    prompt, narrow = tokens("lost", 64), HotBudget(1 << 13, 0)
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
