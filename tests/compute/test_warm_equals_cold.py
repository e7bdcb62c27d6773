"""The oracle suite of the block cache: whatever was restored, the answer is that of a cold run.

The oracle is the naive loop over mlx-lm's plain caches. Windows of the tiny models are 16 tokens,
so prompts are shorter and longer than a ring, and answers wrap it.
"""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx_lm.models import cache as mlx_lm_cache

from omlx_server.compute import caches as cache_ops
from omlx_server.compute.caches import Caches
from omlx_server.compute.codecs.base import Cache, CacheRow
from omlx_server.compute.codecs.kv import KVCodec
from omlx_server.compute.codecs.registry import BY_CLASS
from omlx_server.compute.payload import BlockCodec, Payload
from omlx_server.compute.planning.probe import layers_of
from omlx_server.compute.row_ends import verifies_drafts
from omlx_server.core.blocks.block import LayerKind, PayloadId
from omlx_server.core.memory.kv import LayerKv
from omlx_server.core.prefix_cache.eviction import HotBudget
from omlx_server.core.request import FinishReason, Miss
from omlx_server.core.scheduler.limits import SchedulerLimits
from omlx_server.core.speculation.methods import DraftVerification
from tests.arrays import plain
from tests.compute.drive import ROOMY, Drive, sampling
from tests.compute.oracle import greedy, is_greedy
from tests.compute.warm_runs import (
    DECODED,
    GRID,
    HYBRIDS,
    LIMITS,
    ONE_OF_EACH_KIND,
    PREFILLED,
    PROMPT,
    RINGS,
    check_prefixes,
    cold_run,
    every_kind,
    restored,
    story,
    tell,
    tiny,
    tokens,
)
from tests.sweeps import sweep, wide
from tests.tiny_models import CONFIGS, VOCAB, load_tiny

pytestmark = pytest.mark.usefixtures("either_order")

# -- every prefix of a stored sequence ---------------------------------------------------


@pytest.mark.parametrize(
    ("block_size", "chunk", "prompt_length", "architecture"),
    [
        *((8, 32, PROMPT, architecture) for architecture in CONFIGS),
        *((16, 8, PROMPT, architecture) for architecture in (*RINGS[::2], "qwen3_next", "llama")),
        *((16, 32, 11, architecture) for architecture in RINGS[::3]),
        *wide((16, 8, PROMPT, architecture) for architecture in (*RINGS[1::2], "qwen3_5")),
        *wide((16, 32, 11, architecture) for architecture in (*RINGS[1:3], *RINGS[4:])),
    ],
)
def test_every_prefix_goes_on_as_if_cold(
    block_size: int, chunk: int, prompt_length: int, architecture: str
) -> None:
    told = story(architecture, prompt_length)
    limits = replace(LIMITS, prefill_chunk_tokens=chunk, alone_chunk_tokens=32)
    drive = Drive(tiny(architecture), limits, block_size)
    rng = random.Random(1)
    tell(drive, told)
    lengths = list(range(1, len(told.told) + 1))
    rng.shuffle(lengths)
    check_prefixes(drive, told, lengths, rng)
    cached = {length: drive.admitted[f"p{length}"].cached for length in lengths}
    if drive.instance.cache.layout.checkpointed:
        assert sum(cached.values()) > sum(lengths) / 2
    else:
        assert all(cached[length] == length - 1 for length in lengths)


@every_kind(CONFIGS)
def test_evictions_in_any_order_change_no_answer(architecture: str) -> None:
    told = story(architecture, PROMPT)
    drive = Drive(tiny(architecture), LIMITS, 8)
    rng = random.Random(2)
    tell(drive, told)
    full = drive.instance.cache.index.nbytes
    for turn in range(3):
        blocks = list(drive.instance.cache.index.blocks())
        rng.shuffle(blocks)
        for block in blocks:
            drive.instance.cache.index.touch(block)
        room = int(full * (0.5, 0, 0.9)[turn])
        drive.instance.cache.budget = HotBudget(room, room // 2, lattice_start=16)
        lengths = rng.sample(range(1, len(told.told) + 1), 6)
        check_prefixes(drive, told, lengths, rng, f"{turn}-")
        assert drive.instance.cache.index.nbytes <= room


@every_kind(CONFIGS)
def test_prompts_that_part_from_a_stored_one_are_answered_right(architecture: str) -> None:
    told = story(architecture, PROMPT)
    drive = Drive(tiny(architecture), LIMITS, 16)
    rng = random.Random(3)
    tell(drive, told)
    asked = {}
    for number in range(10):
        shared = rng.randrange(len(told.told))
        prompt = (*told.told[:shared], *tokens(number, rng.choice([1, 3, 20])))
        asked[f"r{number}"] = prompt
        drive.add(f"r{number}", prompt, sampling(8))
        drive.step()
    drive.finish()
    for name, prompt in asked.items():
        assert is_greedy(tiny(architecture).model, prompt, drive.answers[f"{name}/0"])


@pytest.mark.parametrize(("architecture", "block_size"), sweep(CONFIGS, [8, 16]))
def test_logits_after_a_restore_are_those_of_the_cold_run(
    architecture: str, block_size: int
) -> None:
    """Bit for bit where the chunks are the same: at the ends of chunks and in decode. But a ring
    that has wrapped in decode is rebuilt in temporal order, so its sums are in another order."""
    model = tiny(architecture).model
    codec = BlockCodec.of(model, block_size)
    assert codec is not None
    length = PREFILLED + DECODED
    sequence = tokens("logits", length)
    cold = cold_run(model, codec, sequence)
    stops = cold.states if codec.layout.checkpointed else range(1, length)
    for stop in stops:
        if stop == length:
            break
        wrapped = stop > PREFILLED and LayerKind.WINDOW in codec.layout.kinds
        on_grid = (stop % GRID == 0 or stop >= PREFILLED) and not wrapped
        width = (GRID if stop < PREFILLED else 1) if on_grid else 5
        following = sequence[stop : stop + width]
        warm = model(mx.array([following]), cache=restored(codec, cold, stop))[0]
        reference = cold.logits[stop : stop + width]
        if on_grid:
            assert plain(mx.array_equal(warm, reference)), f"not the same bits after {stop} tokens"
        else:
            worst = plain(mx.abs(warm - reference).max())
            assert worst < 1e-4, f"{worst} off after {stop} tokens"


# -- the suite itself turns red ----------------------------------------------------------


class FutureStates(BlockCodec):
    """Restores the newest state that it has seen, whatever the boundary: a known fault."""

    _newest: Payload

    def cut_checkpoint(self, caches: Caches, row: CacheRow) -> Payload:
        self._newest = super().cut_checkpoint(caches, row)
        return self._newest

    def join(
        self,
        blocks: Sequence[Payload],
        checkpoint: Payload | None,
        stop: int,
        **options: Any,
    ) -> Caches:
        return super().join(blocks, self._newest if checkpoint else None, stop, **options)


class FutureBlocks(BlockCodec):
    """Takes the last tokens of a block where the first are asked for."""

    def join(
        self,
        blocks: Sequence[Payload],
        checkpoint: Payload | None,
        stop: int,
        **options: Any,
    ) -> Caches:
        *before, last = blocks
        used = stop - len(before) * self.layout.block_size
        own = last.detached()
        late = tuple(mx.roll(buffer, used, -2) for buffer in own.buffers)
        blocks = [*before, Payload(late, own.places)]
        return super().join(blocks, checkpoint, stop, **options)


@pytest.mark.parametrize("architecture", HYBRIDS)
def test_a_state_from_the_future_is_noticed(architecture: str) -> None:
    told = story(architecture, PROMPT)
    drive = Drive(tiny(architecture), LIMITS, 8, codec=FutureStates)
    tell(drive, told)
    with pytest.raises(AssertionError, match="warm is not cold"):
        check_prefixes(drive, told, range(32, 44), random.Random(1))


@pytest.mark.parametrize("architecture", ["llama", "gemma3_text", "gpt_oss", "deepseek_v32"])
def test_tokens_from_the_future_are_noticed(architecture: str) -> None:
    told = story(architecture, PROMPT)
    drive = Drive(tiny(architecture), LIMITS, 8, codec=FutureBlocks)
    tell(drive, told)
    with pytest.raises(AssertionError, match="warm is not cold"):
        check_prefixes(drive, told, range(26, 32), random.Random(1))


# -- what is computed --------------------------------------------------------------------


@pytest.mark.parametrize("architecture", CONFIGS)
def test_a_repeated_prompt_computes_one_token(architecture: str) -> None:
    """None in the prefill: the decode of its last token gives the first logits."""
    prompt = tokens("again", 75)
    drive = Drive(tiny(architecture), LIMITS, 16)
    first = drive.answer("first", prompt, 5)
    assert drive.computed["first"] == 74
    assert drive.answer("again", prompt, 5) == first
    assert drive.computed["again"] == 0
    assert drive.admitted["again"].miss is Miss.NONE


@pytest.mark.parametrize(
    ("architecture", "split", "block_size"),
    sweep(HYBRIDS, [(150, 70), (160, 60), (154, 66)], [8, 16]),
)
def test_from_the_third_request_on_a_hybrid_computes_its_own_tokens_only(
    architecture: str, split: tuple[int, int], block_size: int
) -> None:
    shared, own = split
    prefix = tokens("system", shared)
    probe = Drive(tiny(architecture), LIMITS, block_size)
    probe.answer("x", prefix, 2)
    state = (
        probe.instance.cache.index.checkpoint_bytes // probe.instance.cache.index.checkpoint_count
    )
    budget = HotBudget(1 << 40, checkpoint_bytes=8 * state, lattice_start=64)
    drive = Drive(tiny(architecture), LIMITS, block_size, budget)
    for number in range(9):
        prompt = [*prefix, number, *tokens(number, own - 1)]
        answer = drive.answer(f"r{number}", prompt, 4)
        if number in (2, 8):
            assert is_greedy(tiny(architecture).model, prompt, answer)
        if number >= 2:
            assert drive.computed[f"r{number}"] < own
        assert drive.instance.cache.index.checkpoint_bytes <= 8 * state


@pytest.mark.parametrize(("shared", "own"), [(1500, 700), (1600, 600), (1537, 663)])
def test_a_long_shared_prefix_of_a_hybrid_is_found_whatever_the_split(
    shared: int, own: int
) -> None:
    limits = SchedulerLimits(max_batch_size=8, prefill_chunk_tokens=512, max_batched_tokens=2048)
    drive = Drive(tiny("qwen3_next"), limits, 64, replace(ROOMY, lattice_start=512))
    prefix = tokens("system", shared)
    for number in range(4):
        prompt = [*prefix, number, *tokens(number, own - 1)]
        drive.answer(f"r{number}", prompt, 2)
        if number >= 2:
            assert drive.computed[f"r{number}"] < own


@pytest.mark.parametrize("stopped", [False, True])
@every_kind(CONFIGS)
def test_a_turn_of_a_conversation_computes_only_what_is_new(
    architecture: str, stopped: bool
) -> None:
    """A stop token ends each answer, or its length; the history holds all of it."""
    rng = random.Random(5)
    drive = Drive(tiny(architecture), LIMITS, 8, replace(ROOMY, lattice_start=64))
    history = tokens("system", 40)
    for turn in range(10):
        new = tokens(f"user {turn}", rng.randrange(5, 20))
        history += new
        stop_ids = frozenset(range(0, VOCAB, 12)) if stopped else frozenset[int]()
        drive.add(f"t{turn}", history, sampling(12, stop_ids=stop_ids))
        drive.finish()
        answer = drive.answers.get(f"t{turn}/0", [])
        if turn:
            assert drive.computed[f"t{turn}"] <= len(new) + 2
        if turn in (1, 5, 9) and answer:
            assert is_greedy(tiny(architecture).model, history, answer)
        history += answer
        if len(answer) < 12:
            history += greedy(tiny(architecture).model, history, 1)


def together(drive: Drive, count: int = 8, shared: int = 100) -> dict[str, list[int]]:
    """Requests that arrive at one moment on one prefix."""
    prefix = tokens("prefix", shared)
    prompts = {f"r{i}": [*prefix, i, *tokens(i, 4 + i)] for i in range(count)}
    for name, prompt in prompts.items():
        drive.add(name, prompt, sampling(6))
    return prompts


def distinct(prompts: dict[str, list[int]], shared: int = 100) -> int:
    return shared + sum(len(prompt) - shared for prompt in prompts.values())


def check_answers(drive: Drive, prompts: dict[str, list[int]]) -> None:
    for name, prompt in prompts.items():
        answer = drive.answers[f"{name}/0"]
        assert len(answer) == 6 and is_greedy(drive.loaded.model, prompt, answer), name


@every_kind(CONFIGS)
def test_requests_that_arrive_together_compute_their_prefix_once(architecture: str) -> None:
    drive = Drive(tiny(architecture), LIMITS, 16)
    prompts = together(drive)
    drive.finish()
    check_answers(drive, prompts)
    assert drive.computed.total() < 1.2 * distinct(prompts)


@pytest.mark.parametrize(("architecture", "steps"), sweep(ONE_OF_EACH_KIND, [1, 2, 3, 4]))
def test_waiters_go_on_when_the_owner_is_cancelled(architecture: str, steps: int) -> None:
    drive = Drive(tiny(architecture), LIMITS, 16)
    prompts = together(drive, 4)
    for _ in range(steps):
        drive.step()
    [owner] = [name for name in prompts if drive.computed[name]][:1]
    drive.cancel(owner)
    drive.finish()
    prompts.pop(owner)
    check_answers(drive, prompts)
    assert drive.computed.total() < 1.2 * (distinct(prompts) + LIMITS.prefill_chunk_tokens)


class FailsAtPrompt(nn.Module):
    """Raises in its n-th forward of more than one token, and so often in forwards of the same."""

    def __init__(self, inner: nn.Module, forward: int, times: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.inner = inner
        self._forwards_left = forward
        self._times_left = times
        self._failed = list[Any]()

    def __call__(self, inputs: mx.array, cache: Caches | None = None) -> mx.array:
        if inputs.shape[1] > 1:
            self._forwards_left -= 1
            if not self._forwards_left:
                self._failed = plain(inputs)
            if plain(inputs) == self._failed and self._times_left:
                self._times_left -= 1
                raise ValueError("planted")
        logits: mx.array = self.inner(inputs, cache=cache)
        return logits

    def make_cache(self) -> Caches:
        return cache_ops.new_caches(self.inner)


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("architecture", ONE_OF_EACH_KIND)
def test_waiters_go_on_when_the_owner_fails(architecture: str, times: int) -> None:
    """It is to blame if it fails twice."""
    loaded = tiny(architecture)
    drive = Drive(replace(loaded, model=FailsAtPrompt(loaded.model, 2, times)), LIMITS, 16)
    prompts = together(drive, 4)
    drive.finish()
    failed = [name for name in prompts if drive.ends[f"{name}/0"] is FinishReason.ERROR]
    assert len(failed) == times - 1
    for name in failed:
        prompts.pop(name)
    check_answers(drive, prompts)


@pytest.mark.parametrize("architecture", ONE_OF_EACH_KIND)
def test_every_choice_of_a_request_can_be_continued(architecture: str) -> None:
    drive = Drive(tiny(architecture), LIMITS, 16)
    prompt = tokens("n", 37)
    drive.add("n", prompt, sampling(20, temperature=1.0, seed=3), n=3)
    drive.finish()
    answers = [drive.answers[f"n/{choice}"] for choice in range(3)]
    assert drive.computed.total() <= (36 if drive.runner.batchable else 37)
    assert len({tuple(answer) for answer in answers}) == 3
    for choice, answer in enumerate(answers):
        longer = [*prompt, *answer, 1, 2, 3]
        got = drive.answer(f"c{choice}", longer, 5)
        assert drive.computed[f"c{choice}"] <= 3
        assert is_greedy(tiny(architecture).model, longer, got)


@pytest.mark.parametrize(("architecture", "steps"), sweep(ONE_OF_EACH_KIND, [2, 4, 12, 21]))
def test_an_aborted_request_leaves_what_it_computed(architecture: str, steps: int) -> None:
    """Cancelled in its prefill, and in its answer."""
    drive = Drive(tiny(architecture), LIMITS, 16, replace(ROOMY, lattice_start=16))
    prompt = tokens("aborted", 120)
    drive.add("aborted", prompt, sampling(40))
    for _ in range(steps):
        drive.step()
    done = drive.computed["aborted"]
    drive.cancel("aborted")
    drive.finish()
    prompt = [*prompt, *drive.answers.get("aborted/0", [])]
    assert is_greedy(tiny(architecture).model, prompt, drive.answer("next", prompt, 8))
    reusable = done if done == 119 else done - done % 32
    if drive.instance.cache.layout.checkpointed and done < 119:
        reusable = 64 if done >= 64 else done // 16 * 16  # states stand on the lattice
    assert drive.admitted["next"].cached >= reusable > 0


# -- what is never shared ----------------------------------------------------------------


@pytest.mark.parametrize("architecture", ONE_OF_EACH_KIND)
def test_salts_never_share(architecture: str) -> None:
    drive = Drive(tiny(architecture), LIMITS, 16)
    prompt = tokens("secret", 60)
    first = drive.answer("a", prompt, 4, salt=b"a")
    for name, salt in (("b", b"b"), ("none", b""), ("same", b"a")):
        assert drive.answer(name, prompt, 4, salt=salt) == first
    assert [drive.admitted[name].cached for name in ("b", "none", "same")] == [0, 0, 59]
    assert drive.admitted["b"].miss is Miss.NAMESPACE


def test_another_format_is_another_namespace() -> None:
    layouts = [
        codec.layout
        for window in (16, 32)
        for codec in [BlockCodec.of(load_tiny("gpt_oss", sliding_window=window).model, 16)]
        if codec is not None
    ]
    assert len({layout.format for layout in layouts}) == 2
    assert all(layout.kinds == {LayerKind.DELTA, LayerKind.WINDOW} for layout in layouts)


class OddCache(mlx_lm_cache.KVCache):  # type: ignore[misc]
    """A class that nobody knows."""


class OddModel(FailsAtPrompt):
    def make_cache(self) -> Caches:
        return [OddCache() for _ in super().make_cache()]


def test_a_model_with_an_unknown_cache_is_served_without_reuse() -> None:
    loaded = replace(tiny("llama"), model=OddModel(tiny("llama").model, 0, 0))
    drive = Drive(loaded, LIMITS, 16)
    prompt = tokens("odd", 50)
    for name in ("a", "b"):
        assert drive.answer(name, prompt, 6) == greedy(tiny("llama").model, prompt, 6)
        assert drive.admitted[name].cached == 0
    assert len(drive.instance.cache.index) == 0


class OddCodec(KVCodec):
    classes = (OddCache,)
    groupable = False

    def batchable(self, fresh: Cache) -> bool:
        return False

    def describe(self, fresh: Cache) -> str:
        return "odd"

    def layer_kv(self, cache: Cache) -> LayerKv:
        return replace(super().layer_kv(cache), window=3)


def test_a_codec_is_all_that_a_new_cache_class_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is reused, and what it allows and takes is what the codec says."""
    monkeypatch.setitem(BY_CLASS, OddCache, OddCodec())
    model = OddModel(tiny("llama").model, 0, 0)
    loaded = replace(tiny("llama"), model=model, verifies=verifies_drafts(model))
    drive = Drive(loaded, LIMITS, 16)
    prompt = tokens("odd", 50)
    for name, cached in (("a", 0), ("b", 49)):
        assert drive.answer(name, prompt, 6) == greedy(tiny("llama").model, prompt, 6)
        assert drive.admitted[name].cached == cached
    runner = drive.instance.runner
    assert runner.why_alone and not runner.grouping.batchable
    assert runner.loaded.verifies is DraftVerification.ALONE
    codec = BlockCodec.of(loaded.model, 16)
    assert codec is not None and "odd" in codec.layout.format
    assert [layer.window for layer in layers_of(loaded.model)] == [3]


@pytest.mark.parametrize("architecture", ["llama", "gemma3_text", "qwen3_next"])
@pytest.mark.parametrize("others", [0, 3])
def test_unreadable_blocks_are_a_miss_and_never_an_error(architecture: str, others: int) -> None:
    prompt = tokens("unreadable", 60)
    drive = Drive(tiny(architecture), LIMITS, 8)
    drive.answer("first", prompt, 4)
    for number in range(1, 60):
        id = PayloadId(number)
        if id in drive.hot:
            drive.hot[id] = Payload((), ())
    drive.add("again", prompt, sampling(12))
    for number in range(others):
        drive.add(f"other{number}", [*prompt, number], sampling(5))
    drive.finish()
    assert drive.ends["again/0"] is FinishReason.LENGTH
    assert is_greedy(drive.loaded.model, prompt, drive.answers["again/0"])
    assert drive.admitted["again"].miss is Miss.UNREADABLE
    for number in range(others):
        assert is_greedy(drive.loaded.model, [*prompt, number], drive.answers[f"other{number}/0"])
