"""The law "warm equals cold" through files: what comes back from the cold tier, in the same process
or after a restart, is bit for bit what went there, and the answers are those of the naive loop.
"""

import random
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import mlx.core as mx
import pytest

from omlx_server.compute.caches import Caches
from omlx_server.compute.codecs.registry import leaves
from omlx_server.compute.kv.caches import PackedKVCache
from omlx_server.compute.model.loader import LoadedModel
from omlx_server.compute.payload import BlockCodec, Payload, Source
from omlx_server.core.blocks.block import Checkpoint, Worth
from omlx_server.core.blocks.keys import BlockKey
from omlx_server.core.blocks.layout import CacheLayout
from omlx_server.core.cold.recall import Rates
from omlx_server.core.prefix_cache.eviction import Budget
from omlx_server.core.request import Miss
from omlx_server.core.work import finish
from omlx_server.store.cold import ColdTier
from omlx_server.store.files import Files
from tests.compute.drive import ROOMY, Drive
from tests.compute.oracle import is_greedy
from tests.compute.test_pack import raw, same
from tests.compute.test_warm_equals_cold import (
    ANSWER,
    HYBRIDS,
    LIMITS,
    ONE_OF_EACH_KIND,
    PROMPT,
    RINGS,
    check_prefixes,
    story,
    tell,
    tiny,
    tokens,
)
from tests.tiny_models import CONFIGS

SECRET = b"s" * 32
TOLD = PROMPT + ANSWER
AHEAD = 6
SIZE = 8
# On block boundaries and between them, shorter and longer than the windows of 16 tokens; below 17
# tokens a read is not worth its while.
LENGTHS = (10, 18, 24, 25, 38, 49, TOLD)
BEFORE_THE_LAST = 1  # the last token of a prompt is computed by the first decode


@dataclass(frozen=True, eq=False)
class Join:
    """One restore: what it was made of, and the arrays of its caches at that moment."""

    sources: tuple[Source, ...]
    state: Payload | None
    stop: int
    arrays: list[bytes]
    packed: list[tuple[type, float]]
    """Of each quantised cache: its class, and the bytes that a token takes in it."""


class Steady(Rates):
    """A tiny model computes as fast as files are read, and a busy machine may read slowly."""

    def reading_pays(self, tokens: int, nbytes: int) -> bool:
        return Rates().reading_pays(tokens, nbytes)

    def patience(self, tokens: int) -> float:
        return 30.0


class Noting(BlockCodec):
    """Notes each restore."""

    joins: list[Join]

    def join(
        self, sources: Sequence[Source], state: Payload | None, stop: int, *, launch: bool = True
    ) -> Caches:
        caches = super().join(sources, state, stop, launch=launch)
        self.joins.append(Join(tuple(sources), state, stop, arrays_of(caches), packed_in(caches)))
        return caches


def packed_in(caches: Caches) -> list[tuple[type, float]]:
    packed = [leaf for leaf in leaves(caches) if isinstance(leaf, PackedKVCache)]
    return [(type(leaf), leaf.nbytes / leaf.keys[0].shape[2]) for leaf in packed]


def arrays_of(caches: Caches) -> list[bytes]:
    flat: list[bytes] = []

    def walk(value: object) -> None:
        if isinstance(value, mx.array):
            flat.append(repr((value.shape, value.dtype)).encode() + raw(mx.contiguous(value)))
        elif isinstance(value, list | tuple):
            for member in value:
                walk(member)

    for leaf in leaves(caches):
        walk(leaf.state)
        flat.append(repr({n: v for n, v in vars(leaf).items() if isinstance(v, int)}).encode())
    return flat


def open_tier(directory: Path, budget: int = 1 << 40) -> ColdTier:
    return ColdTier(Files(directory), SECRET, budget=budget, queue_bytes=1 << 30)


@contextmanager
def lane(
    directory: Path,
    model: str | LoadedModel,
    *,
    size: int = SIZE,
    budget: Budget = ROOMY,
    cold_budget: int = 1 << 40,
    fingerprint: str = "",
    write_through: bool = False,
) -> Iterator[Drive]:
    """A lane as after a start: with nothing in memory, and all files of the directory known."""
    loaded = tiny(model) if isinstance(model, str) else model
    if fingerprint:
        loaded = replace(loaded, fingerprint=fingerprint)
    noting = type("Noting", (Noting,), {"joins": []})
    cold = open_tier(directory, cold_budget)
    drive = Drive(loaded, LIMITS, size, budget, noting, cold, write_through=write_through)
    drive.lane.cache.rates = Steady()
    learn(drive)
    try:
        yield drive
    finally:
        finish(drive.lane.closing(29))
        cold.close(1)


def learn(drive: Drive) -> None:
    """Until the start of every file was read."""
    assert drive.cold is not None
    end = time.monotonic() + 10
    drive.lane.recall()
    while any(entry.record is None for entry in drive.cold.index.entries()):
        assert time.monotonic() < end
        time.sleep(0.0005)
        drive.lane.recall()


def joins(drive: Drive) -> list[Join]:
    codec = drive.runner.codec
    assert isinstance(codec, Noting)
    return codec.joins


def layout(drive: Drive) -> CacheLayout:
    return drive.lane.cache.layout


def kept(drive: Drive) -> dict[BlockKey, Payload]:
    """What is in memory, by the keys of its records."""
    cache = drive.lane.cache
    return {cache.record(held).key: drive.hot.get(held.id) for held in cache.index.by_depth()}


def check_joins(drive: Drive, hot: dict[BlockKey, Payload], found: Iterable[Join]) -> int:
    """Do the restores over again with what the first lane had in memory; every bit must agree.
    Returns how many payloads were compared."""
    key_of = {id(payload): key for key, payload in kept(drive).items()}
    codec = drive.runner.codec
    assert codec is not None
    compared = 0

    def original(payload: Payload) -> Payload:
        nonlocal compared
        before = hot.get(key_of[id(payload)])
        if before is None:
            return payload  # made by this lane, not by the one before
        assert before is not payload and same(before, payload)
        compared += 1
        return before

    for join in found:
        sources = [replace(source, payload=original(source.payload)) for source in join.sources]
        state = original(join.state) if join.state else None
        caches = BlockCodec.join(codec, sources, state, join.stop)
        assert arrays_of(caches) == join.arrays, f"other caches after {join.stop} tokens"
    return compared


# -- after a restart ---------------------------------------------------------------------


@pytest.mark.parametrize("architecture", CONFIGS)
def test_every_prefix_goes_on_after_a_restart_as_in_memory(
    architecture: str, tmp_path: Path
) -> None:
    told = story(architecture, PROMPT)
    with lane(tmp_path / "kv", architecture) as drive:
        tell(drive, told)
        hot = kept(drive)
    states = worths(drive)
    assert len(list(Files(tmp_path / "kv").scan())) == len(hot)
    for length in LENGTHS:
        copy = shutil.copytree(tmp_path / "kv", tmp_path / str(length))  # it leaves its own there
        with lane(copy, architecture) as again:
            prompt = told.told[:length]
            answer = again.answer("again", prompt, AHEAD)
            assert is_greedy(again.loaded.model, prompt, answer), f"after {length} tokens"
            wanted = length - BEFORE_THE_LAST
            if layout(again).checkpointed:
                wanted = max((state for state in states if state <= wanted), default=0)
            wanted = wanted if wanted >= 16 else 0
            assert again.admissions["again"].cached == wanted
            assert again.computed["again"] == length - BEFORE_THE_LAST - wanted
            if wanted:
                assert check_joins(again, hot, joins(again)) >= 2


@pytest.mark.parametrize("architecture", CONFIGS)
def test_a_repeated_prompt_computes_nothing_after_a_restart(
    architecture: str, tmp_path: Path
) -> None:
    """But the decode of its last token."""
    prompt = tokens("again", 75)
    with lane(tmp_path, architecture, size=16) as drive:
        first = drive.answer("first", prompt, 5)
        assert drive.computed["first"] == 74
    with lane(tmp_path, architecture, size=16) as again:
        assert again.answer("again", prompt, 5) == first
        assert again.computed["again"] == 0
        assert again.admissions["again"].miss is Miss.NONE


@pytest.mark.parametrize("architecture", HYBRIDS)
def test_a_state_keeps_its_worth(architecture: str, tmp_path: Path) -> None:
    shared = tokens("system", 40)
    with lane(tmp_path, architecture) as drive:
        drive.answer("a", [*shared, *tokens("a", 30)], 2, marks=(40,))
        before = worths(drive)
        assert before[40] is Worth.SHARED
    with lane(tmp_path, architecture) as again:
        again.answer("b", [*shared, *tokens("b", 1)], 2)
        assert again.computed["b"] == 0
        assert worths(again)[40] is Worth.SHARED


def worths(drive: Drive) -> dict[int, Worth]:
    held = drive.lane.cache.index.by_depth()
    return {c.position: c.worth for c in held if isinstance(c, Checkpoint)}


@pytest.mark.parametrize("architecture", ONE_OF_EACH_KIND)
def test_what_is_of_another_model_is_never_used(architecture: str, tmp_path: Path) -> None:
    told = story(architecture, PROMPT)
    with lane(tmp_path, architecture) as drive:
        tell(drive, told)
        stored = len(kept(drive))
    for other in ("another", f"{drive.loaded.fingerprint} "):
        with lane(tmp_path, architecture, fingerprint=other) as again:
            assert again.cold is not None and len(again.cold.index) >= stored
            assert again.answer("x", told.told, AHEAD)
            assert again.admissions["x"].cached == 0
            assert again.computed["x"] == TOLD - BEFORE_THE_LAST
            assert again.cold.stats.read == 0
    with lane(tmp_path, architecture, size=16) as again:  # another block size, the same weights
        again.answer("x", told.told, AHEAD)
        assert again.computed["x"] == TOLD - BEFORE_THE_LAST


@pytest.mark.parametrize("architecture", ONE_OF_EACH_KIND)
def test_a_tenant_finds_nothing_of_another(architecture: str, tmp_path: Path) -> None:
    told = story(architecture, PROMPT)
    with lane(tmp_path, architecture) as drive:
        drive.answer("a", told.prompt, ANSWER, salt=b"a")
    with lane(tmp_path, architecture) as again:
        again.answer("b", told.told, AHEAD, salt=b"b")
        again.answer("none", told.told, AHEAD)
        assert again.computed["b"] == again.computed["none"] == TOLD - BEFORE_THE_LAST
    with lane(tmp_path, architecture) as again:
        again.answer("a", told.told, AHEAD, salt=b"a")
        assert again.computed["a"] < 16


# -- evicted and back, in one process ----------------------------------------------------


@pytest.mark.parametrize("architecture", CONFIGS)
def test_what_was_evicted_comes_back_beside_strangers(architecture: str, tmp_path: Path) -> None:
    told = story(architecture, PROMPT)
    rng = random.Random(4)
    with lane(tmp_path, architecture) as drive:
        tell(drive, told)
        hot = kept(drive)
        full = drive.lane.cache.index.nbytes
        for turn in range(2):
            drive.lane.cache.budget = Budget(0, 0, buffers=0)
            drive.answer(f"{turn}-all-out", tokens(turn, 3), 1)
            assert len(drive.lane.cache.index) == 0 and not len(drive.hot)
            room = (1 << 40, 2 * full)[turn]
            drive.lane.cache.budget = Budget(room, room, lattice_start=32)
            assert drive.cold is not None
            while not turn and drive.cold.report().queued:  # later, some are still to be written
                drive.lane.recall()
            lengths = [37, 40, 41, TOLD, 18] if turn else [TOLD, 40]
            rng.shuffle(lengths)
            joins(drive).clear()
            check_prefixes(drive, told, lengths, rng, f"{turn}-")
            assert turn or drive.computed[f"{turn}-{TOLD}"] <= 1
            came = sum(drive.admissions[f"{turn}-{length}"].cached for length in lengths)
            assert came >= sum(lengths) * (0.4 if layout(drive).checkpointed else 0.8)
            if not turn:
                assert drive.cold.stats.read > 0
                check_joins(drive, hot, joins(drive))
            drive.cold.index.check_invariants()


@pytest.mark.parametrize("architecture", ["llama", *RINGS[:2], *HYBRIDS[:2]])
def test_in_a_memory_for_one_prompt_many_take_turns(architecture: str, tmp_path: Path) -> None:
    """Each evicts the one before, which comes back from the files."""
    stories = [tokens(f"turns-{n}", 60) for n in range(4)]
    with lane(tmp_path / "probe", architecture) as probe:
        probe.answer("x", stories[0], 4)
        one = probe.lane.cache.index.nbytes
    budget = Budget(3 * one, 3 * one, lattice_start=32)
    first: dict[int, list[int]] = {}
    with lane(tmp_path / "kv", architecture, budget=budget) as drive:
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
    with lane(tmp_path, architecture, write_through=True) as drive:
        tell(drive, told)
        assert drive.cold is not None
        assert kept(drive).keys() <= {entry.key for entry in drive.cold.index.entries()}


@pytest.mark.parametrize("architecture", ONE_OF_EACH_KIND)
def test_a_cold_tier_smaller_than_a_prompt_keeps_its_head(
    architecture: str, tmp_path: Path
) -> None:
    prompt = tokens("long", 160)
    with lane(tmp_path / "all", architecture) as drive:
        drive.answer("x", prompt, 2)
    nbytes = sum(found.nbytes for found in Files(tmp_path / "all").scan())
    with lane(tmp_path / "kv", architecture, cold_budget=nbytes * 2 // 3) as drive:
        drive.answer("x", prompt, 2)
    with lane(tmp_path / "kv", architecture, cold_budget=nbytes * 2 // 3) as again:
        again.answer("x", prompt, 2)
        cached = again.admissions["x"].cached
        assert layout(again).checkpointed or 60 <= cached < 120


# -- damage ------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", ONE_OF_EACH_KIND)
def test_damaged_and_missing_files_cost_tokens_only(architecture: str, tmp_path: Path) -> None:
    told = story(architecture, PROMPT)
    rng = random.Random(5)
    with lane(tmp_path / "kv", architecture) as drive:
        tell(drive, told)
    for turn in range(3):
        copy = shutil.copytree(tmp_path / "kv", tmp_path / str(turn))
        with lane(copy, architecture) as again:
            damage(copy, rng)
            damage(copy, rng)
            check_prefixes(again, told, [TOLD], rng, f"{turn}-")
            assert again.cold is not None
            again.cold.index.check_invariants()
            while again.cold.reads:  # for prompts that have ended meanwhile
                again.lane.recall()
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
    with lane(tmp_path, "llama") as drive:
        tell(drive, told)
    for path in tmp_path.rglob("*.safetensors"):
        path.write_bytes(path.read_bytes()[:-1] + b"\0\0")
    with lane(tmp_path, "llama") as again:
        again.answer("x", told.told, AHEAD)
        assert again.admissions["x"].miss is Miss.UNREADABLE
        assert again.computed["x"] == TOLD - BEFORE_THE_LAST
    with lane(tmp_path, "llama") as third:
        third.answer("x", told.told, AHEAD)
        assert third.computed["x"] == 0
