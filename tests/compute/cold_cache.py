"""A model beside a cold tier, and prompts that come back from it."""

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import mlx.core as mx

from omlx_server.compute.caches import Caches
from omlx_server.compute.codecs.registry import leaves
from omlx_server.compute.kv.caches import PackedKVCache
from omlx_server.compute.model.loader import LoadedModel
from omlx_server.compute.payload import BlockCodec, Payload
from omlx_server.core.blocks.block import CacheLayout
from omlx_server.core.blocks.keys import BlockKey
from omlx_server.core.cold.recall import Rates
from omlx_server.core.prefix_cache.eviction import HotBudget
from omlx_server.core.work import finish
from omlx_server.store.cold import ColdTier
from omlx_server.store.files import Files
from tests.compute.drive import ROOMY, Drive
from tests.compute.payloads import raw, same
from tests.compute.warm_runs import (
    LIMITS,
    tiny,
)

SECRET = b"s" * 32
SIZE = 8


@dataclass(frozen=True, eq=False)
class Join:
    """One restore: what it was made of, and the arrays of its caches at that moment."""

    blocks: tuple[Payload, ...]
    checkpoint: Payload | None
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
        self,
        blocks: Sequence[Payload],
        checkpoint: Payload | None,
        stop: int,
        **options: Any,
    ) -> Caches:
        caches = super().join(blocks, checkpoint, stop, **options)
        self.joins.append(
            Join(tuple(blocks), checkpoint, stop, arrays_of(caches), packed_in(caches))
        )
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
def instance(
    directory: Path,
    model: str | LoadedModel,
    *,
    size: int = SIZE,
    budget: HotBudget = ROOMY,
    cold_budget: int = 1 << 40,
    fingerprint: str = "",
    write_through: bool = False,
) -> Iterator[Drive]:
    """An instance as after a start: with nothing in memory, and all files of the directory
    known."""
    loaded = tiny(model) if isinstance(model, str) else model
    if fingerprint:
        loaded = replace(loaded, fingerprint=fingerprint)
    noting = type("Noting", (Noting,), {"joins": []})
    cold = open_tier(directory, cold_budget)
    drive = Drive(loaded, LIMITS, size, budget, noting, cold, write_through=write_through)
    drive.instance.cache.read_ahead.rates = Steady()
    learn(drive)
    try:
        yield drive
    finally:
        finish(drive.instance.tiers.write_before_close(29))
        cold.close(1)


def learn(drive: Drive) -> None:
    """Until the start of every file was read."""
    assert drive.cold is not None
    end = time.monotonic() + 10
    drive.instance.recall()
    while any(entry.record is None for entry in drive.cold.index.entries()):
        assert time.monotonic() < end
        time.sleep(0.0005)
        drive.instance.recall()


def joins(drive: Drive) -> list[Join]:
    codec = drive.runner.codec
    assert isinstance(codec, Noting)
    return codec.joins


def layout(drive: Drive) -> CacheLayout:
    return drive.instance.cache.layout


def kept(drive: Drive) -> dict[BlockKey, Payload]:
    """What is in memory, by the keys of its records."""
    cache = drive.instance.cache
    return {cache.record(held).key: drive.hot[held.id] for held in cache.index.by_depth()}


def check_joins(drive: Drive, hot: dict[BlockKey, Payload], found: Iterable[Join]) -> int:
    """Do the restores over again with what the first instance had in memory; every bit must agree.
    Returns how many payloads were compared."""
    key_of = {id(payload): key for key, payload in kept(drive).items()}
    codec = drive.runner.codec
    assert codec is not None
    compared = 0

    def original(payload: Payload) -> Payload:
        nonlocal compared
        key = key_of.get(id(payload))  # None for a short block, when a longer one has replaced it
        before = hot.get(key) if key is not None else None
        if before is None:
            return payload  # made by this instance, not by the one before
        assert before is not payload and same(before, payload)
        compared += 1
        return before

    for join in found:
        blocks = [original(block) for block in join.blocks]
        checkpoint = original(join.checkpoint) if join.checkpoint else None
        caches = BlockCodec.join(codec, blocks, checkpoint, join.stop)
        assert arrays_of(caches) == join.arrays, f"other caches after {join.stop} tokens"
    return compared
