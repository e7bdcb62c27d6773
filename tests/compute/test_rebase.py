"""Blocks of which a restore makes a copy refer to it from then on: nothing is there twice."""

import mlx.core as mx
import pytest

from omlx_server.compute import caches as cache_ops
from omlx_server.compute.caches import Caches
from omlx_server.compute.codecs.base import CacheRow
from omlx_server.compute.payload import BlockCodec, Payload
from tests.compute.payloads import same
from tests.compute.warm_runs import tiny, tokens

SIZE = 8
STOP = 60


@pytest.fixture
def codec() -> BlockCodec:
    codec = BlockCodec.of(tiny("llama").model, SIZE)
    assert codec is not None
    return codec


def computed(codec: BlockCodec) -> tuple[Caches, list[Payload]]:
    """A sequence and its blocks, the last of which is short."""
    caches = cache_ops.new_caches(tiny("llama").model)
    tiny("llama").model(mx.array([tokens("rebase", STOP)]), cache=caches)
    cache_ops.evaluate(caches, wait=True)
    stops = [*range(SIZE, STOP, SIZE), STOP]
    row = CacheRow(0, STOP)
    return caches, [
        codec.cut_block(caches, row, stop - 1 - (stop - 1) % SIZE, stop) for stop in stops
    ]


def strips_of(payload: Payload) -> list[object]:
    assert payload.segment is not None
    return list(payload.segment.run.strips)


def own_strips(caches: Caches) -> list[object]:
    return [cache.strip(0) for cache in caches]


@pytest.mark.parametrize("stop", [STOP, 56, 30])
def test_full_blocks_refer_to_the_copy_that_was_made_of_them(codec: BlockCodec, stop: int) -> None:
    caches, blocks = computed(codec)
    copies = [block.detached() for block in blocks]
    del caches, blocks
    before = [payload.detached() for payload in copies]
    restored = codec.join(copies, None, stop)
    for number, (payload, was) in enumerate(zip(copies, before, strict=True)):
        assert same(payload, was)
        if number < stop // SIZE:
            assert strips_of(payload) == own_strips(restored) and not payload.own_bytes
        else:
            assert payload.segment is None
    assert codec.runs.block_bytes == sum(payload.referred_bytes for payload in copies)
    restored[0].trim(stop)
    assert all(same(payload, was) for payload, was in zip(copies, before, strict=True))


def test_blocks_of_a_run_at_rest_move_to_the_copy(codec: BlockCodec) -> None:
    caches, blocks = computed(codec)
    before = [payload.detached() for payload in blocks]
    mx.eval([payload.buffers for payload in before])
    del caches
    first = codec.join(blocks, None, STOP)
    assert all(strips_of(block) == own_strips(first) for block in blocks[:-1])
    assert all(same(payload, was) for payload, was in zip(blocks, before, strict=True))


def test_blocks_of_a_sequence_at_work_stay_with_it(codec: BlockCodec) -> None:
    caches, blocks = computed(codec)
    restored = codec.join(blocks, None, STOP)
    assert all(strips_of(block) == own_strips(caches) for block in blocks)
    assert own_strips(restored) != own_strips(caches)


def test_a_trial_moves_nothing(codec: BlockCodec) -> None:
    caches, blocks = computed(codec)
    copies = [block.detached() for block in blocks]
    codec.join(copies, None, STOP, launch=False, rebase=False)
    assert all(payload.segment is None for payload in copies)
    assert all(strips_of(block) == own_strips(caches) for block in blocks)


def test_a_block_that_begins_in_what_is_shared_is_a_copy(codec: BlockCodec) -> None:
    """Its first tokens are not in the buffers of the row."""
    codec.runs.least = 0
    caches, blocks = computed(codec)
    restored = codec.join(blocks, None, STOP)
    assert restored[0].first == 56
    again = codec.cut_block(restored, CacheRow(0, STOP), 48, 56)
    assert again.segment is None and same(again, blocks[6])
    tail = codec.cut_block(restored, CacheRow(0, STOP), 56, STOP)
    assert strips_of(tail) == own_strips(restored) and same(tail, blocks[7])
    assert strips_of(blocks[7]) == own_strips(caches)
