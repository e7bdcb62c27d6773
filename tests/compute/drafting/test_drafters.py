"""What drafts beside the text keeps its caches in step with its rows, whatever becomes of these."""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omlx_server.compute import caches as cache_ops
from omlx_server.compute.architectures.pair import Headed, Pair
from omlx_server.compute.codecs.base import Arrays, Cache, CacheRow
from omlx_server.compute.codecs.registry import codec_of
from omlx_server.compute.drafting.model_drafter import Behind
from omlx_server.compute.model.pairing import check_can_draft, paired
from omlx_server.core.memory.kv import MOST_BEHIND
from omlx_server.core.speculation.methods import DraftVerification, Method
from omlx_server.errors import ModelUnavailable
from tests.arrays import plain
from tests.compute.drive import LIMITS, Drive, sampling
from tests.compute.headed import HEADED, headed
from tests.compute.live_rows import LiveRow, LiveRows
from tests.compute.warm_runs import tiny, tokens
from tests.sweeps import sweep
from tests.tiny_models import VOCAB

pytestmark = pytest.mark.usefixtures("either_order")

EVERY = settings(max_examples=80, deadline=None)
BLOCK = 16
ITSELF = ("llama", "gemma3_text", "qwen3_next", "deepseek_v3")
ID = st.integers(0, 99)
# Prompts of so many tokens, computed in two chunks.
PROMPTS = ((1, 0), (2, 0), (5, 2), (17, 16), (50, 20))


def prompt_of(rng: random.Random) -> list[int]:
    """Of one of three beginnings, which blocks may have already, and an end of its own."""
    head = tokens(f"head {rng.randrange(3)}", rng.choice((5, 20, 40)))
    return [*head, *tokens(rng.random(), rng.choice((1, 2, 15)))]


def add(drive: Drive, rng: random.Random, name: str) -> None:
    """A request of one of many kinds. Some rows draft nothing."""
    params = sampling(
        rng.choice((2, 9, 40)),
        temperature=rng.choice((0, 1.0)),
        seed=rng.randrange(99),
        repetition_penalty=rng.choice((1.0, 1.3)),
        frequency_penalty=rng.choice((0.0, 0.4)),
        stop_ids=frozenset(rng.sample(range(VOCAB), 2)),
    )
    speculation = rng.choice((None, None, None, "off"))
    drive.add(name, prompt_of(rng), params, n=rng.choice((1, 1, 3)), speculation=speculation)


@pytest.mark.parametrize(("architecture", "seed"), sweep(ITSELF, [0, 1]))
def test_a_model_that_drafts_for_itself_is_always_right(architecture: str, seed: int) -> None:
    rng, loaded = random.Random(seed), tiny(architecture)
    drive = Drive(paired(loaded, loaded), replace(LIMITS, speculation="draft"), BLOCK)
    for number in range(14):
        add(drive, rng, f"r{number}")
        for _ in range(rng.choice((0, 1, 4, 15))):
            drive.step()
        if rng.random() < 0.3:
            drive.cancel(f"r{rng.randrange(number + 1)}")
    drive.finish()
    assert drive.instance.speculation is not None
    counts = drive.instance.speculation.counts
    assert counts.drafted[Method.DRAFT] > 100
    assert counts.accepted == counts.drafted


@pytest.mark.parametrize("architecture", ITSELF)
def test_so_it_is_behind_drafts_of_others_that_were_wrong(architecture: str) -> None:
    rng, loaded = random.Random(architecture), tiny(architecture)
    rows, drafted = LiveRows(paired(loaded, loaded), architecture), 0
    for _ in range(50):
        rows.come_and_go(rng, PROMPTS)
        for result in rows.draft_at_random(rng):
            assert result.accepted == result.drafted
            drafted += result.drafted
    assert drafted > 100


def test_who_cannot_take_back_what_it_drafted_drafts_for_nobody() -> None:
    llama = tiny("llama")
    with pytest.raises(ModelUnavailable, match="can't take back tokens that it drafted"):
        check_can_draft(replace(llama, verifies=DraftVerification.NEVER))
    assert (
        paired(replace(llama, verifies=DraftVerification.ALONE), llama).verifies
        is DraftVerification.ALONE
    )


@EVERY
@given(st.data())
def test_what_rows_are_behind_is_what_they_were_fed(data: st.DataObject) -> None:
    """Steps that were read, and behind them steps that were not. Then some rows leave, and others
    join."""
    count = data.draw(st.integers(1, 4))
    behind, naive = Behind(count), [list[int]() for _ in range(count)]
    for known in data.draw(
        st.lists(st.lists(st.lists(ID, max_size=3), min_size=count, max_size=count), max_size=3)
    ):
        plain_steps(data, behind, naive)
        behind.verified(known)
        for row, fed in zip(naive, known, strict=True):
            row += fed
    plain_steps(data, behind, naive)
    kept = data.draw(st.lists(st.integers(0, count - 1), min_size=1, unique=True))
    behind.keep(kept)
    new = data.draw(st.integers(0, 2))
    if new:
        behind.add(new)
    naive = [naive[row] for row in kept] + [list[int]() for _ in range(new)]
    plain_steps(data, behind, naive)
    assert behind.rows == len(naive)
    assert behind.lengths == [len(row) for row in naive]
    assert len(behind) == max(behind.lengths)
    if len(behind):
        found = plain(behind.tokens())
        assert {len(row) for row in found} == {len(behind)}
        assert [row[: len(own)] for row, own in zip(found, naive, strict=True)] == naive


def plain_steps(data: st.DataObject, behind: Behind, naive: list[list[int]]) -> None:
    """Some steps, each of which feeds a token to every row."""
    for step in data.draw(
        st.lists(st.lists(ID, min_size=len(naive), max_size=len(naive)), max_size=4)
    ):
        behind.stepped(mx.array(step, dtype=mx.int32))
        for row, token in zip(naive, step, strict=True):
            row.append(token)


@pytest.mark.parametrize("architecture", HEADED)
def test_heads_have_what_they_would_have_of_the_whole_text(architecture: str) -> None:
    """Whoever drafted, and whatever of it was right. Before the first token of a chunk and before
    the newest one of a row that joins there is nothing."""
    rng = random.Random(architecture)
    rows = LiveRows(headed(architecture), architecture)
    for _ in range(20):
        rows.come_and_go(rng, PROMPTS)
        rows.draft_at_random(rng)
        for number, row in enumerate(rows.rows):
            check_heads(rows, number, row)


def check_heads(rows: LiveRows, number: int, row: LiveRow) -> None:
    model = rows.loaded.model
    assert isinstance(model, Headed)
    text, count = mx.array([row.prompt + row.got]), rows.batch.cached_tokens(number)
    fresh = cache_ops.new_caches(model)
    _, hidden = model.decode(text[:, :count], fresh[: model.own_caches])
    before = mx.concatenate([mx.zeros_like(hidden[:, :1]), hidden[:, :-1]], axis=1)
    before[:, mx.array([*row.starts, len(row.prompt) - 1])] = 0
    model.draft(text[:, :count], before, fresh[model.own_caches :])
    found = kept_of(rows.batch.caches[-1], CacheRow(number, count))
    expected = kept_of(fresh[-1], CacheRow(0, count))
    for mine, theirs in zip(found, expected, strict=True):
        assert mx.allclose(mine, theirs, atol=1e-4)


def kept_of(cache: Cache, row: CacheRow) -> Arrays:
    """All keys and values of a row."""
    return codec_of(cache).cut(cache, row, 0, row.length)


class Watched(Pair):
    """Notes of how many places each forward of its drafter is."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.widths: list[int] = []

    def draft(self, tokens: mx.array, cache: Sequence[Any]) -> mx.array:
        self.widths.append(tokens.shape[1])
        return super().draft(tokens, cache)


def watched() -> tuple[Watched, LiveRows]:
    """The rows of a model that drafts for itself."""
    llama = tiny("llama")
    pair = Watched(llama.model, llama.model, llama.dims.vocab)
    rows = LiveRows(replace(paired(llama, llama), model=pair), "llama")
    rows.join((17, 0), (5, 0))
    pair.widths.clear()
    return pair, rows


@pytest.mark.parametrize("right", [1, 7, 16])
def test_a_draft_model_is_never_far_behind(right: int) -> None:
    """However many steps go by in which what the text drafts is right."""
    pair, rows = watched()
    fed = 0
    while fed < 80:
        rows.decode({0: (right, 0), 1: (right, 0)}, {})
        fed += 1 + right
    assert sum(pair.widths) > fed - MOST_BEHIND - (1 + right)
    assert max(pair.widths) < MOST_BEHIND + 1 + right
    pair.widths.clear()
    [first, second] = rows.decode({}, {0: 2, 1: 2})
    assert first.accepted == first.drafted and second.accepted == second.drafted
    assert sum(pair.widths) <= MOST_BEHIND + 1 + 2


def test_where_nobody_comes_nothing_is_caught_up() -> None:
    pair, rows = watched()
    for _ in range(3):
        rows.decode({}, {})
        rows.batch.join([])
    assert not pair.widths and all(map(rows.batch.is_behind, rows.batch.ids))
    rows.join((2, 0))
    assert pair.widths[-1] == 3 and not any(map(rows.batch.is_behind, rows.batch.ids))
