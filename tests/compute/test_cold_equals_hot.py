"""The law "warm equals cold" through files: what comes back from the cold tier, in the same process
or after a restart, is bit for bit what went there, and the answers are those of the naive loop.
"""

import random
import shutil
from pathlib import Path

import pytest

from omlx_server.core.blocks.block import Checkpoint, Worth
from omlx_server.core.prefix_cache.eviction import HotBudget
from omlx_server.core.request import Miss
from omlx_server.store.files import Files
from tests.compute.cold_cache import check_joins, instance, joins, kept, layout
from tests.compute.drive import Drive
from tests.compute.oracle import is_greedy
from tests.compute.warm_runs import (
    ANSWER,
    HYBRIDS,
    ONE_OF_EACH_KIND,
    PROMPT,
    RINGS,
    check_prefixes,
    every_kind,
    story,
    tell,
    tokens,
)
from tests.core.cold.chains import check_cold_index
from tests.tiny_models import CONFIGS

pytestmark = pytest.mark.usefixtures("either_order")

TOLD = PROMPT + ANSWER
AHEAD = 6
# On block boundaries and between them, shorter and longer than the windows of 16 tokens; below 17
# tokens a read is not worth its while.
LENGTHS = (10, 24, 38, TOLD)
BEFORE_THE_LAST = 1  # the last token of a prompt is computed by the first decode


# -- after a restart ---------------------------------------------------------------------


@pytest.mark.parametrize("architecture", CONFIGS)
def test_every_prefix_goes_on_after_a_restart_as_in_memory(
    architecture: str, tmp_path: Path
) -> None:
    told = story(architecture, PROMPT)
    with instance(tmp_path / "kv", architecture) as drive:
        tell(drive, told)
        hot = kept(drive)
    states = worths(drive)
    assert len(list(Files(tmp_path / "kv").scan())) == len(hot)
    for length in LENGTHS:
        copy = shutil.copytree(tmp_path / "kv", tmp_path / str(length))  # it leaves its own there
        with instance(copy, architecture) as again:
            prompt = told.told[:length]
            answer = again.answer("again", prompt, AHEAD)
            assert is_greedy(again.loaded.model, prompt, answer), f"after {length} tokens"
            wanted = length - BEFORE_THE_LAST
            if layout(again).checkpointed:
                wanted = max((state for state in states if state <= wanted), default=0)
            wanted = wanted if wanted >= 16 else 0
            assert again.admitted["again"].cached == wanted
            assert again.computed["again"] == length - BEFORE_THE_LAST - wanted
            if wanted:
                assert check_joins(again, hot, joins(again)) >= 2


@every_kind(CONFIGS)
def test_a_repeated_prompt_computes_nothing_after_a_restart(
    architecture: str, tmp_path: Path
) -> None:
    """But the decode of its last token."""
    prompt = tokens("again", 75)
    with instance(tmp_path, architecture, size=16) as drive:
        first = drive.answer("first", prompt, 5)
        assert drive.computed["first"] == 74
    with instance(tmp_path, architecture, size=16) as again:
        assert again.answer("again", prompt, 5) == first
        assert again.computed["again"] == 0
        assert again.admitted["again"].miss is Miss.NONE


@pytest.mark.parametrize("architecture", HYBRIDS)
def test_a_state_keeps_its_worth(architecture: str, tmp_path: Path) -> None:
    shared = tokens("system", 40)
    with instance(tmp_path, architecture) as drive:
        drive.answer("a", [*shared, *tokens("a", 30)], 2, checkpoints_at=(40,))
        before = worths(drive)
        assert before[40] is Worth.SHARED
    with instance(tmp_path, architecture) as again:
        again.answer("b", [*shared, *tokens("b", 1)], 2)
        assert again.computed["b"] == 0
        assert worths(again)[40] is Worth.SHARED


def worths(drive: Drive) -> dict[int, Worth]:
    held = drive.instance.cache.index.by_depth()
    return {c.position: c.worth for c in held if isinstance(c, Checkpoint)}


@pytest.mark.parametrize("architecture", ONE_OF_EACH_KIND)
def test_what_is_of_another_model_is_never_used(architecture: str, tmp_path: Path) -> None:
    told = story(architecture, PROMPT)
    with instance(tmp_path, architecture) as drive:
        tell(drive, told)
        stored = len(kept(drive))
    for other in ("another", f"{drive.loaded.fingerprint} "):
        with instance(tmp_path, architecture, fingerprint=other) as again:
            assert again.cold is not None and len(again.cold.index) >= stored
            assert again.answer("x", told.told, AHEAD)
            assert again.admitted["x"].cached == 0
            assert again.computed["x"] == TOLD - BEFORE_THE_LAST
            assert again.cold.stats.read == 0
    with instance(tmp_path, architecture, size=16) as again:  # another block size, the same weights
        again.answer("x", told.told, AHEAD)
        assert again.computed["x"] == TOLD - BEFORE_THE_LAST


@pytest.mark.parametrize("architecture", ONE_OF_EACH_KIND)
def test_a_tenant_finds_nothing_of_another(architecture: str, tmp_path: Path) -> None:
    told = story(architecture, PROMPT)
    with instance(tmp_path, architecture) as drive:
        drive.answer("a", told.prompt, ANSWER, salt=b"a")
    with instance(tmp_path, architecture) as again:
        again.answer("b", told.told, AHEAD, salt=b"b")
        again.answer("none", told.told, AHEAD)
        assert again.computed["b"] == again.computed["none"] == TOLD - BEFORE_THE_LAST
    with instance(tmp_path, architecture) as again:
        again.answer("a", told.told, AHEAD, salt=b"a")
        assert again.computed["a"] < 16


# -- evicted and back, in one process ----------------------------------------------------


@every_kind(CONFIGS)
def test_what_was_evicted_comes_back_beside_strangers(architecture: str, tmp_path: Path) -> None:
    told = story(architecture, PROMPT)
    rng = random.Random(4)
    with instance(tmp_path, architecture) as drive:
        tell(drive, told)
        hot = kept(drive)
        full = drive.instance.cache.index.nbytes
        for turn in range(2):
            drive.instance.cache.budget = HotBudget(0, 0, buffers=0)
            drive.answer(f"{turn}-all-out", tokens(turn, 3), 1)
            assert len(drive.instance.cache.index) == 0 and not len(drive.hot)
            room = (1 << 40, 2 * full)[turn]
            drive.instance.cache.budget = HotBudget(room, room, lattice_start=32)
            assert drive.cold is not None
            while not turn and drive.cold.report().queued:  # later, some are still to be written
                drive.instance.tiers.recall()
            lengths = [37, 40, 41, TOLD, 18] if turn else [TOLD, 40]
            rng.shuffle(lengths)
            joins(drive).clear()
            check_prefixes(drive, told, lengths, rng, f"{turn}-")
            assert turn or drive.computed[f"{turn}-{TOLD}"] <= 1
            came = sum(drive.admitted[f"{turn}-{length}"].cached for length in lengths)
            assert came >= sum(lengths) * (0.4 if layout(drive).checkpointed else 0.8)
            if not turn:
                assert drive.cold.stats.read > 0
                assert check_joins(drive, hot, joins(drive)) >= 2
            check_cold_index(drive.cold.index)


@pytest.mark.parametrize("architecture", ["llama", *RINGS[:2], *HYBRIDS[:2]])
def test_in_a_memory_for_one_prompt_many_take_turns(architecture: str, tmp_path: Path) -> None:
    """Each evicts the one before, which comes back from the files."""
    stories = [tokens(f"turns-{n}", 60) for n in range(4)]
    with instance(tmp_path / "probe", architecture) as probe:
        probe.answer("x", stories[0], 4)
        one = probe.instance.cache.index.nbytes
    budget = HotBudget(3 * one, 3 * one, lattice_start=32)
    first: dict[int, list[int]] = {}
    with instance(tmp_path / "kv", architecture, budget=budget) as drive:
        for turn in range(3):
            for number, prompt in enumerate(stories):
                name = f"{turn}-{number}"
                answer = drive.answer(name, prompt, 4)
                assert first.setdefault(number, answer) == answer
                assert is_greedy(drive.loaded.model, prompt, answer)
                if turn:
                    assert drive.computed[name] <= (27 if layout(drive).checkpointed else 0)


@pytest.mark.parametrize("architecture", ONE_OF_EACH_KIND)
def test_with_write_through_all_is_in_files_at_once(architecture: str, tmp_path: Path) -> None:
    told = story(architecture, PROMPT)
    with instance(tmp_path, architecture, write_through=True) as drive:
        tell(drive, told)
        assert drive.cold is not None
        assert kept(drive).keys() <= {entry.key for entry in drive.cold.index.entries()}


@pytest.mark.parametrize("architecture", ONE_OF_EACH_KIND)
def test_a_cold_tier_smaller_than_a_prompt_keeps_its_head(
    architecture: str, tmp_path: Path
) -> None:
    prompt = tokens("long", 160)
    with instance(tmp_path / "all", architecture) as drive:
        drive.answer("x", prompt, 2)
    nbytes = sum(found.nbytes for found in Files(tmp_path / "all").scan())
    with instance(tmp_path / "kv", architecture, cold_budget=nbytes * 2 // 3) as drive:
        drive.answer("x", prompt, 2)
    with instance(tmp_path / "kv", architecture, cold_budget=nbytes * 2 // 3) as again:
        again.answer("x", prompt, 2)
        cached = again.admitted["x"].cached
        assert layout(again).checkpointed or 60 <= cached < 120


# -- damage ------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", ONE_OF_EACH_KIND)
def test_damaged_and_missing_files_cost_tokens_only(architecture: str, tmp_path: Path) -> None:
    told = story(architecture, PROMPT)
    rng = random.Random(5)
    with instance(tmp_path / "kv", architecture) as drive:
        tell(drive, told)
    for turn in range(2):
        copy = shutil.copytree(tmp_path / "kv", tmp_path / str(turn))
        with instance(copy, architecture) as again:
            damage(copy, rng)
            damage(copy, rng)
            check_prefixes(again, told, [TOLD], rng, f"{turn}-")
            assert again.cold is not None
            check_cold_index(again.cold.index)
            while again.cold.reads.under_way:  # for prompts that have ended meanwhile
                again.instance.tiers.recall()
            assert not any(entry.leases for entry in again.cold.index.entries())


def damage(directory: Path, rng: random.Random) -> None:
    files = sorted(directory.rglob("*.safetensors"))
    victim, other = rng.sample(files, 2)
    data = bytearray(victim.read_bytes())
    match rng.randrange(4):
        case 0:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            victim.write_bytes(data)
        case 1:
            victim.write_bytes(data[: rng.randrange(len(data))])
        case 2:
            victim.write_bytes(other.read_bytes())
        case _:
            victim.unlink()


def test_a_block_that_memory_lost_is_written_again(tmp_path: Path) -> None:
    """A file that is damaged is replaced when its block leaves the memory the next time."""
    told = story("llama", PROMPT)
    with instance(tmp_path, "llama") as drive:
        tell(drive, told)
    for path in tmp_path.rglob("*.safetensors"):
        path.write_bytes(path.read_bytes()[:-1] + b"\0\0")
    with instance(tmp_path, "llama") as again:
        again.answer("x", told.told, AHEAD)
        assert again.admitted["x"].miss is Miss.UNREADABLE
        assert again.computed["x"] == TOLD - BEFORE_THE_LAST
    with instance(tmp_path, "llama") as third:
        third.answer("x", told.told, AHEAD)
        assert third.computed["x"] == 0
