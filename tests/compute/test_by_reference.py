"""The oracle suite again, of sequences that refer to all that they can: spans of a few tokens, of
live rows and of runs at rest, which are never given up for being short."""

import random
from collections.abc import Sequence
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import pytest

from omlx_server.compute import caches as cache_ops
from omlx_server.compute.codecs.base import CacheRow
from omlx_server.compute.codecs.registry import leaves
from omlx_server.compute.kv.caches import PackedKVCache
from omlx_server.compute.kv.schemes.base import Scheme
from omlx_server.compute.payload import BlockCodec
from omlx_server.core.prefix_cache.eviction import HotBudget
from tests.arrays import plain
from tests.compute.cold_cache import open_tier
from tests.compute.drive import ROOMY, Drive, sampling
from tests.compute.kv.every_scheme import every_scheme
from tests.compute.kv.models import quantised
from tests.compute.oracle import is_greedy
from tests.compute.referring import SIZE, Referring, adopt_always, check_books
from tests.compute.warm_runs import (
    DECODED,
    GRID,
    LIMITS,
    PREFILLED,
    PROMPT,
    check_prefixes,
    cold_run,
    every_kind,
    restored,
    story,
    tell,
    tiny,
    tokens,
)
from tests.sweeps import sweep
from tests.tiny_models import CONFIGS

pytestmark = pytest.mark.usefixtures("either_order")


def refers(architecture: str) -> bool:
    codec = BlockCodec.of(tiny(architecture).model, SIZE)
    return codec is not None and codec.layout.refers


REFERRING = [architecture for architecture in CONFIGS if refers(architecture)]


def driven(architecture: str, budget: HotBudget = ROOMY) -> Drive:
    return Drive(tiny(architecture), LIMITS, SIZE, budget, codec=Referring)


def test_the_usual_architectures_refer() -> None:
    assert {"llama", "qwen3", "gemma3_text", "gpt_oss", "qwen3_next", "lfm2", "deepseek_v3"} <= set(
        REFERRING
    )


@pytest.mark.parametrize("architecture", REFERRING)
def test_every_prefix_goes_on_as_if_cold(architecture: str) -> None:
    told, rng = story(architecture, PROMPT), random.Random(1)
    drive = driven(architecture)
    tell(drive, told)
    lengths = rng.sample(range(1, len(told.told) + 1), 20)
    check_prefixes(drive, told, lengths, rng)
    check_books(drive)
    if architecture in ("llama", "qwen3"):
        assert any(run.extent[1] > SIZE for run in drive.runner.runs._runs)


@every_kind(REFERRING)
def test_evictions_in_any_order_change_no_answer(architecture: str) -> None:
    told, rng = story(architecture, PROMPT), random.Random(2)
    drive = driven(architecture)
    tell(drive, told)
    index = drive.instance.cache.index
    full = index.nbytes
    for turn in range(2):
        blocks = list(index.blocks())
        rng.shuffle(blocks)
        for block in blocks:
            index.touch(block)
        room = int(full * (0.2, 0)[turn])
        drive.instance.cache.budget = HotBudget(room, room // 2, lattice_start=16)
        check_prefixes(drive, told, rng.sample(range(1, len(told.told) + 1), 6), rng, f"{turn}-")
        assert index.nbytes <= room
        check_books(drive)


@pytest.mark.parametrize("adopts", [False, True])
@pytest.mark.parametrize(
    ("architecture", "seed"),
    sweep(["llama", "gemma3_text", "qwen3_next", "gpt_oss", "deepseek_v3"], range(6)),
)
def test_rows_that_share_come_and_go_as_they_like(
    architecture: str, seed: int, adopts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts of one family, several choices, cancels, preemptions, evictions behind live rows,
    resets and crashes: each answer is that of its prompt alone."""
    if adopts:
        adopt_always(monkeypatch)
    rng = random.Random(seed)
    drive = driven(architecture)
    family: list[Sequence[int]] = [tokens(f"{architecture}-{seed}", 60)]
    asked, cancelled = dict[str, Sequence[int]](), set[str]()
    for number in range(24):
        base = rng.choice(family)
        prompt: Sequence[int] = [
            *base[: rng.randrange(1, len(base) + 1)],
            *tokens(number, rng.choice([1, 4, 30])),
        ]
        family.append(prompt)
        asked[f"r{number}"] = prompt
        drive.add(f"r{number}", prompt, sampling(rng.choice([1, 6, 25])), n=rng.choice([1, 1, 3]))
        for _ in range(rng.choice([0, 1, 2, 8])):
            drive.step()
        disturb(drive, rng, asked, cancelled)
    drive.finish()
    model = drive.loaded.model
    for name, its_prompt in asked.items():
        for choice in range(3) if name not in cancelled else ():
            answer = drive.answers.get(f"{name}/{choice}")
            assert answer is None or is_greedy(model, its_prompt, answer), f"{name}/{choice}"
    check_books(drive)


def disturb(
    drive: Drive, rng: random.Random, asked: dict[str, Sequence[int]], cancelled: set[str]
) -> None:
    instance = drive.instance
    match rng.choice(["nothing", "cancel", "preempt", "evict", "reset", "restart", "tidy"]):
        case "cancel":
            name = rng.choice(list(asked))
            cancelled.add(name)
            drive.cancel(name)
        case "preempt":
            drive.preempt(rng)
        case "evict":
            drive.evict()
        case "reset":
            instance.reset_cache()
        case "restart":
            drive.lose()
        case "tidy":
            drive.runner.runs.tidy(wholly=True)


TOGETHER = [name for name in REFERRING if not cache_ops.why_alone(tiny(name).model)]


@pytest.mark.parametrize("architecture", TOGETHER)
def test_choices_share_their_prompt(architecture: str) -> None:
    drive, prompt = driven(architecture), tokens("choices", 61)
    drive.add("many", prompt, sampling(12), n=4, speculation="off")
    for _ in range(8):
        drive.step()
    rows = drive.instance.scheduler.queues.running
    assert len(rows) == 4
    packed = [leaf for leaf in leaves(drive.runner._batch.caches) if hasattr(leaf, "strip")]
    assert packed and all(
        leaf._groups[0].first(place) == 56 for leaf in packed for place in range(4)
    )
    drive.cancel("none")
    drive.instance.scheduler.queues.preempt(next(iter(rows)))
    drive.finish()
    for choice in range(4):
        assert is_greedy(drive.loaded.model, prompt, drive.answers[f"many/{choice}"])
    check_books(drive)


def test_a_lost_step_takes_only_the_blocks_of_live_rows() -> None:
    drive, prompt = driven("llama"), tokens("lost", 80)
    first = drive.answer("first", prompt, 9)
    kept = len(drive.instance.cache.index)
    drive.add("second", [*prompt, *tokens("more", 40)], sampling(30))
    for _ in range(12):
        drive.step()
    assert len(drive.instance.cache.index) > kept
    drive.lose()
    assert len(drive.instance.cache.index) == kept
    assert not any(payload.is_lost for payload in drive.hot.values())
    drive.finish()
    assert is_greedy(drive.loaded.model, [*prompt, *tokens("more", 40)], drive.answers["second/0"])
    assert drive.answer("again", prompt, 9) == first
    check_books(drive)


@pytest.mark.parametrize("starved", [False, True])
def test_what_a_failed_step_has_written_never_goes_to_the_cold_tier(
    tmp_path: Path, starved: bool
) -> None:
    cold = open_tier(tmp_path)
    drive = Drive(tiny("llama"), LIMITS, SIZE, ROOMY, codec=Referring, cold=cold)
    prompt = tokens("lost", 80)
    drive.add("a", prompt, sampling(30))
    for _ in range(12):
        drive.step()
    drive.instance.cache.budget = HotBudget(1, 1, lattice_start=16)
    drive.instance.drop_evicted()
    assert drive.instance.cache.index.in_use
    if starved:
        drive.pipeline.clear()
        assert drive.instance.recover_memory()
    else:
        drive.lose()
    assert not drive.instance.tiers.writing
    drive.finish()
    assert starved or is_greedy(drive.loaded.model, prompt, drive.answers["a/0"])


def test_a_hit_copies_nothing_and_a_row_that_decodes_holds_its_blocks_once() -> None:
    drive, prompt = driven("llama"), tokens("hit", 64)
    drive.answer("first", prompt, 1)
    drive.add("second", [*prompt, *tokens("tail", 9)], sampling(3))
    index, runs = drive.instance.cache.index, drive.runner.runs
    before, held = runs.idle_bytes, index.nbytes
    drive.step()
    [block, *_] = index.blocks()
    assert index.in_use == 72 // SIZE * block.size.nbytes  # it has made one of its own
    assert runs.idle_bytes == before and index.nbytes == held + block.size.nbytes
    drive.finish()
    check_books(drive)


# -- quantised ---------------------------------------------------------------------------


@every_scheme
@pytest.mark.parametrize("architecture", ["llama", "gpt_oss"])
def test_quantised_logits_after_a_restore_are_those_of_the_cold_run(
    architecture: str, scheme: Scheme
) -> None:
    model = quantised(architecture, scheme).model
    codec = Referring.of(model, SIZE)
    assert codec is not None
    sequence = tokens("quantised", PREFILLED + DECODED)
    cold = cold_run(model, codec, sequence)
    for stop in (GRID, 37, PREFILLED, PREFILLED + 1, PREFILLED + 9):
        width = GRID if stop < PREFILLED else 1
        caches = restored(codec, cold, stop)
        packed = [leaf for leaf in leaves(caches) if isinstance(leaf, PackedKVCache)]
        assert packed and all(leaf.first == stop // SIZE * SIZE for leaf in packed)
        warm = model(mx.array([sequence[stop : stop + width]]), cache=caches)[0]
        worst = plain(mx.abs(warm - cold.logits[stop : stop + width]).max())
        assert worst < 1e-3, f"{worst} off after {stop} tokens"


# -- cut back ----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(8))
def test_rows_that_are_cut_back_change_no_other_row_and_no_block(seed: int) -> None:
    """Rows on one run, one of them its owner, forget some of their last tokens, shared ones too,
    and go on with others."""
    rng = random.Random(seed)
    model, sequence = tiny("llama").model, tokens("cut", 70)
    codec = Referring.of(model, SIZE)
    assert codec is not None
    caches = cache_ops.new_caches(model)
    fed(model, caches, sequence[:64])
    blocks = [codec.cut_block(caches, CacheRow(0, 64), at, at + SIZE) for at in range(0, 64, SIZE)]
    rows = [list(sequence[:64])]
    batch = cache_ops.merge([caches])
    for _ in range(2):
        stop = rng.randrange(17, 65)
        cache_ops.extend(
            batch, cache_ops.merge([codec.join(blocks[: -(-stop // SIZE)], None, stop)])
        )
        rows.append(list(sequence[:stop]))
    for _ in range(4):
        count = rng.choice([1, 2, 20])
        new = [rng.randrange(150) for _ in rows]
        logits = model(mx.array(new)[:, None], cache=batch)[:, -1]
        for row, token in zip(rows, new, strict=True):
            row.append(token)
        for index, row in enumerate(rows):
            expected = model(mx.array([row]))[0, -1]
            assert plain(mx.abs(logits[index] - expected).max()) < 1e-4
        for cache in batch:
            cache.trim(count)
        rows = [row[:-count] for row in rows]
    warm = model(mx.array([sequence[64:]]), cache=codec.join(blocks, None, 64))[0]
    assert plain(mx.abs(warm - model(mx.array([sequence]))[0, 64:]).max()) < 1e-4


def fed(model: nn.Module, caches: cache_ops.Caches, ids: Sequence[int]) -> None:
    model(mx.array([ids]), cache=caches)
    cache_ops.evaluate(caches, wait=True)
