"""The policy of the prefix cache by example, through the scheduler and a pretend device."""

from dataclasses import replace
from typing import Any

import pytest

from omlx_server.core.blocks.block import CacheLayout, Size, Worth
from omlx_server.core.blocks.record import Record
from omlx_server.core.cold.index import ColdIndex
from omlx_server.core.prefix_cache.eviction import HotBudget
from omlx_server.core.prefix_cache.prefix_cache import PrefixCache
from omlx_server.core.request import (
    Admitted,
    FinishReason,
    Miss,
    Request,
    RequestId,
    SamplingParams,
)
from omlx_server.core.scheduler.limits import SchedulerLimits
from tests.core.places import place
from tests.core.simulator import HYBRID, KV, RECURRENT, ROOMY, WINDOWED, Run, right_answer

LIMITS = SchedulerLimits(max_batch_size=4, prefill_chunk_tokens=8, max_batched_tokens=32)
LAYOUTS = {"kv": KV, "windowed": WINDOWED, "hybrid": HYBRID, "recurrent": RECURRENT}
every_layout = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)


def prompt(text: str) -> tuple[int, ...]:
    return tuple(ord(letter) % 7 for letter in text)


def ask(run: Run, name: str, tokens: tuple[int, ...], count: int = 3, **changes: Any) -> Request:
    request = Request(RequestId(name), tokens, SamplingParams(max_tokens=count), **changes)
    assert run.scheduler.add(request) is None
    return request


def serve(run: Run, name: str, tokens: tuple[int, ...], **changes: Any) -> tuple[int, Admitted]:
    """Serve one request alone; how many prompt tokens it computed, and its admission."""
    before = run.computed
    request = ask(run, name, tokens, **changes)
    run.finish()
    for choice in range(request.n):
        assert run.outputs[name, choice] == right_answer(request, choice)[0]
    return run.computed - before, run.admitted[name]


# -- reuse -------------------------------------------------------------------------------


@every_layout
def test_a_prompt_that_is_repeated_is_not_computed_again(layout: CacheLayout) -> None:
    run = Run(LIMITS, layout)
    tokens = prompt("a prompt of some length")
    assert serve(run, "a", tokens)[0] == len(tokens) - 1
    computed, admitted = serve(run, "b", tokens)
    assert (computed, admitted.miss) == (0, Miss.NONE)


@every_layout
@pytest.mark.parametrize("others", [0, 2])
def test_a_next_turn_that_comes_at_once_finds_the_last_answer(
    layout: CacheLayout, others: int
) -> None:
    run = Run(LIMITS, layout)
    for number in range(others):
        ask(run, f"other {number}", prompt(f"{number} somebody else"), count=40)
    first = Request(RequestId("a"), prompt("a prompt of some length"), SamplingParams(max_tokens=9))
    stop = right_answer(first, 0)[0][-1]
    ends = replace(first.sampling, stop_ids=frozenset({stop}))
    first = replace(first, sampling=ends)
    run.scheduler.add(first)
    while ("a", 0) not in run.finishes:
        run.step()
    assert run.finishes["a", 0] is FinishReason.STOP
    history = (*first.tokens, *run.outputs["a", 0], stop)
    ask(run, "b", (*history, 1, 2, 3))
    run.finish()
    assert run.admitted["b"].cached >= len(history) - 1


@pytest.mark.parametrize("layout", [KV, WINDOWED], ids=["kv", "windowed"])
def test_what_a_prompt_shares_is_reused_to_the_token(layout: CacheLayout) -> None:
    stored = prompt("a prompt of some length")
    for shared in range(1, len(stored)):
        run = Run(LIMITS, layout)
        serve(run, "a", stored)
        other = (*stored[:shared], (stored[shared] + 1) % 7, 1, 2, 3)
        _, admitted = serve(run, "b", other)
        assert admitted.cached == shared


@every_layout
def test_a_conversation_computes_what_is_new(layout: CacheLayout) -> None:
    run = Run(LIMITS, layout)
    tokens = prompt("system and user")
    for turn in range(10):
        new = prompt(f"user {turn}")
        tokens = (*tokens, *new)
        computed, _ = serve(run, f"turn{turn}", tokens, count=11)
        assert turn == 0 or computed <= len(new)
        tokens = (*tokens, *run.outputs[f"turn{turn}", 0])


@every_layout
def test_from_the_third_request_on_a_shared_part_is_computed_by_nobody(
    layout: CacheLayout,
) -> None:
    run = Run(LIMITS, layout, replace(ROOMY, checkpoint_bytes=500))
    shared = prompt("what all of these requests begin with")
    for number in range(8):
        own = (number % 7, number // 7, *prompt("what only this one has"))
        computed, _ = serve(run, f"r{number}", (*shared, *own))
        assert number < 2 or computed < len(own)


@pytest.mark.parametrize("layout", [HYBRID, RECURRENT], ids=["hybrid", "recurrent"])
def test_a_mark_leaves_a_state_behind(layout: CacheLayout) -> None:
    """Already the second request hits where the first was told that it will."""
    run = Run(LIMITS, layout)
    shared = prompt("the system prompt")
    serve(run, "a", (*shared, 1, 2, 3, 4, 5), checkpoints_at=(len(shared),))
    assert serve(run, "b", (*shared, 5, 4, 3, 2, 1))[1].cached == len(shared)


# -- waiting -----------------------------------------------------------------------------


@every_layout
def test_requests_that_come_together_compute_their_prefix_once(layout: CacheLayout) -> None:
    run = Run(replace(LIMITS, max_batch_size=8), layout)
    shared = prompt("a long prefix that all of these requests share")
    own = [(number, *prompt("own")) for number in range(6)]
    requests = [ask(run, f"r{i}", (*shared, *tail)) for i, tail in enumerate(own)]
    run.finish()
    assert run.computed < 1.2 * (len(shared) + sum(map(len, own)))
    for request in requests:
        assert run.outputs[request.id, 0] == right_answer(request, 0)[0]


@every_layout
def test_choices_beyond_the_batch_reuse_what_the_first_computed(layout: CacheLayout) -> None:
    run = Run(LIMITS, layout)
    tokens = prompt("one prompt, many choices")
    assert serve(run, "a", tokens, n=11)[0] == len(tokens) - 1


@every_layout
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_who_waited_goes_on_when_the_owner_is_cancelled(layout: CacheLayout, steps: int) -> None:
    run = Run(LIMITS, layout)
    tokens = prompt("a prompt that takes more than four chunks")
    ask(run, "owner", tokens)
    other = ask(run, "other", tokens)
    for _ in range(steps):
        run.step()
    assert "other" not in run.admitted
    run.scheduler.cancel(RequestId("owner"))
    run.finish()
    assert run.outputs["other", 0] == right_answer(other, 0)[0]
    if not run.cache.layout.checkpointed:
        assert run.admitted["other"].cached == 8 * steps
    assert run.computed <= len(tokens) - 1 + 8 * steps


def test_nobody_waits_for_a_prefix_of_another_salt() -> None:
    run = Run(LIMITS, KV)
    tokens = prompt("a prompt that takes more than four chunks")
    ask(run, "a", tokens, salt=b"a")
    ask(run, "b", tokens, salt=b"b")
    run.finish()
    assert run.computed == 2 * (len(tokens) - 1)
    assert run.admitted["b"].cached == 0


# -- why it was a miss -------------------------------------------------------------------


def test_a_miss_says_why() -> None:
    run = Run(LIMITS, KV)
    tokens = prompt("a prompt of some length")
    assert serve(run, "new", tokens)[1].miss is Miss.NEW_PREFIX
    assert serve(run, "hit", tokens)[1].miss is Miss.NONE
    assert serve(run, "salted", tokens, salt=b"s")[1].miss is Miss.NAMESPACE
    computed, admitted = serve(run, "other", (*tokens[:9], (tokens[9] + 1) % 7, 0))
    assert (admitted.miss, admitted.known, computed) == (Miss.DIVERGED, 9, 1)
    run.cache.budget = HotBudget(0, 0)
    serve(run, "flush", prompt("xyz"))
    run.cache.budget = ROOMY
    assert serve(run, "evicted", tokens)[1].miss is Miss.EVICTED
    assert run.cache.stats.misses[Miss.EVICTED] == 1


def test_a_hybrid_without_a_state_says_so() -> None:
    run = Run(LIMITS, HYBRID, replace(ROOMY, lattice_start=1 << 20))
    tokens = prompt("a prompt of some length")
    serve(run, "a", tokens)
    computed, admitted = serve(run, "b", tokens[:12])
    assert (admitted.miss, admitted.known, admitted.cached) == (Miss.NO_CHECKPOINT, 11, 0)
    assert computed == 11


@pytest.mark.parametrize("change", [{"format": "v1:kv,affine"}, {"block_size": 32}])
def test_blocks_of_another_form_or_size_are_of_another_namespace(change: dict[str, Any]) -> None:
    layout = replace(KV, format="v1:kv,kv")
    assert replace(layout, **change).namespace("m") != layout.namespace("m")
    assert layout.namespace("m") != layout.namespace("n")


def test_counters_add_up() -> None:
    run = Run(LIMITS, KV)
    tokens = prompt("a prompt of some length")
    for name in ("a", "b", "c"):
        serve(run, name, tokens)
    stats = run.cache.stats
    assert (stats.queried_tokens, stats.hit_tokens) == (
        3 * (len(tokens) - 1),
        2 * (len(tokens) - 1),
    )
    assert sum(stats.misses.values()) == 3


# -- what is kept ------------------------------------------------------------------------


def test_a_long_prompt_leaves_states_on_a_lattice() -> None:
    cache = PrefixCache(HYBRID, "model", replace(ROOMY, lattice_start=4))
    handle = cache.enter(tuple(range(40)), b"", (6, 99))
    assert handle.checkpoints_at == {
        4: Worth.LATTICE,
        6: Worth.SHARED,
        8: Worth.LATTICE,
        16: Worth.LATTICE,
        32: Worth.LATTICE,
        40: Worth.NEWEST,
    }
    stops, at = [], 0
    while at < 40:
        at = handle.next_stop(at, 12)
        stops.append(at)
    assert stops == [4, 6, 8, 12, 16, 24, 32, 36, 40]


def test_a_model_without_recurrent_state_has_no_marks() -> None:
    handle = PrefixCache(KV, "model", ROOMY).enter(tuple(range(40)), b"", (6,))
    assert not handle.checkpoints_at


def test_superseded_states_go_before_any_block() -> None:
    cache = PrefixCache(HYBRID, "model", HotBudget(1000, 1000))
    root = cache.root(b"")
    for stop in (4, 8):
        cache.store_block(place(root, range(stop)), Size(10, 1))
        cache.store_checkpoint(place(root, range(stop)), Size(400, 1), Worth.NEWEST)
    cache.store_block(place(root, range(12)), Size(300, 1))
    assert cache.index.checkpoint_count == 1 and len(cache.index) == 3
    assert (cache.stats.evicted_checkpoints, cache.stats.evicted_blocks) == (1, 0)


def test_without_room_everything_works_and_nothing_is_kept() -> None:
    for layout in LAYOUTS.values():
        run = Run(LIMITS, layout, HotBudget(0, 0))
        tokens = prompt("a prompt of some length")
        for name in ("a", "b"):
            assert serve(run, name, tokens)[0] == len(tokens) - 1
        assert run.cache.index.nbytes == 0


def test_the_number_of_buffers_is_bounded_too() -> None:
    run = Run(LIMITS, KV, replace(ROOMY, buffers=5))
    for number in range(5):
        serve(run, f"r{number}", tuple(number + i for i in range(30)))
    assert run.cache.index.buffers <= 5


def test_identical_prompts_leave_nothing_more_behind() -> None:
    for layout in LAYOUTS.values():
        run = Run(LIMITS, layout)
        sizes = set()
        for number in range(20):
            serve(run, f"r{number}", prompt("a prompt of some length"))
            if number > 1:
                sizes.add((len(run.cache.index), run.cache.index.nbytes))
        assert len(sizes) == 1


def test_reset_drops_what_is_not_in_use() -> None:
    run = Run(LIMITS, KV)
    serve(run, "a", prompt("the first of two prompts"))
    request = ask(run, "b", prompt("the second of two"))
    run.step()
    run.cache.reset()
    run.finish()
    assert run.outputs["b", 0] == right_answer(request, 0)[0]
    admitted = serve(run, "again", prompt("the first of two prompts"))[1]
    assert (admitted.known, admitted.miss) == (4, Miss.DIVERGED)  # "the " was in use


@every_layout
def test_a_reset_of_one_salt_leaves_the_others(layout: CacheLayout) -> None:
    run = Run(LIMITS, layout)
    tokens = prompt("a prompt of some length")
    for salt in (b"a", b"b"):
        serve(run, f"first {salt!r}", tokens, salt=salt, owner=salt)
    theirs = run.cache.index.by_depth(run.cache.root(b"b"))
    there = len(run.cache.index) + run.cache.index.checkpoint_count
    dropped = run.cache.reset(b"a")
    assert dropped.blocks + dropped.checkpoints == there - len(theirs) > 0
    assert run.cache.index.by_depth() == theirs
    run.cache.index.check_invariants()
    assert serve(run, "theirs", tokens, salt=b"b", owner=b"b")[0] == 0
    computed, admitted = serve(run, "mine", tokens, salt=b"a", owner=b"a")
    assert (computed, admitted.miss) == (len(tokens) - 1, Miss.NEW_PREFIX)
    assert run.cache.reset(b"nobody").blocks == 0


def test_a_reset_of_one_salt_keeps_what_is_in_use() -> None:
    run = Run(LIMITS, KV)
    request = ask(run, "b", prompt("the second of two"), salt=b"a")
    run.step()
    run.cache.reset(b"a")
    run.finish()
    assert run.outputs["b", 0] == right_answer(request, 0)[0]


def test_what_one_owner_has_asked_is_new_to_another() -> None:
    run = Run(LIMITS, KV)
    tokens = prompt("a prompt of some length")
    serve(run, "first", tokens, salt=b"a", owner=b"one")
    assert serve(run, "theirs", tokens, salt=b"b", owner=b"two")[1].miss is Miss.NEW_PREFIX
    assert serve(run, "own", tokens, salt=b"c", owner=b"one")[1].miss is Miss.NAMESPACE
    run.cache.reset(b"c")  # where it was asked last
    assert serve(run, "other", tokens, salt=b"d", owner=b"one")[1].miss is Miss.NEW_PREFIX


def test_a_probe_changes_nothing_and_tells_what_a_request_would_get() -> None:
    run = Run(LIMITS, HYBRID)
    tokens = prompt("a prompt of some length")
    serve(run, "a", tokens, checkpoints_at=(10,))
    index = run.cache.index
    used = {block.id: block.used for block in index.blocks()}
    probe = run.cache.probe((*tokens[:14], 6, 6, 6), b"")
    assert {block.id: block.used for block in index.blocks()} == used
    assert (probe.cached, probe.known) == (10, 14)
    assert probe.blocks == ((0, 4), (4, 8), (8, 12), (12, 14))
    assert probe.checkpoints == (10,)
    assert run.cache.probe(tokens, b"other").known == 0


@every_layout
def test_a_probe_of_a_prompt_that_ends_with_a_stored_block_tells_of_it(layout: CacheLayout) -> None:
    tokens = tuple(range(8))  # two blocks
    for cold in (None, ColdIndex(1000)):
        cache = PrefixCache(layout, "model", ROOMY, cold)
        parent = cache.root(b"")
        for start in (0, 4):
            record = Record(cache.namespace, parent, start, tokens[start : start + 4])
            assert cache.insert(record, Size(1, 1)) is not None
            parent = record.key
        probe = cache.probe(tokens, b"")
        assert (probe.tokens, probe.known, probe.blocks) == (8, 7, ((0, 4), (4, 7)))


def test_a_model_without_codecs_keeps_nothing() -> None:
    run = Run(LIMITS)
    assert not run.cache.layout.keeps
    tokens = prompt("a prompt of some length")
    for name in ("a", "b"):
        assert serve(run, name, tokens)[0] == len(tokens) - 1
    assert len(run.cache.index) == 0
