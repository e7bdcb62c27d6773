"""The laws of the block cache and of the batch, for quantised caches of every architecture.

Quantised on write, a token is the same bytes whoever computes it, so a warm run is a cold run bit
for bit where the chunks are the same. In a batch sums are in another order, and now and then a
number falls to the next code; answers are those of the sequence alone as long as no two tokens are
nearly as likely.
"""

import mlx.core as mx
import pytest

from omlx_server.compute.caches import Caches
from omlx_server.compute.codecs.registry import leaves
from omlx_server.compute.hardware import device
from omlx_server.compute.kv.caches import PackedKVCache
from omlx_server.compute.kv.schemes.base import Scheme
from omlx_server.compute.kv.schemes.turboquant import TurboQuant
from omlx_server.compute.model.loader import LoadedModel
from omlx_server.compute.payload import BlockCodec, pack, unpack
from omlx_server.core.blocks.block import LayerKind
from omlx_server.core.scheduler.limits import SchedulerLimits
from tests.arrays import plain
from tests.compute.drive import Drive, sampling
from tests.compute.kv.every_scheme import named, same_bits
from tests.compute.kv.pairs import every_pair, model_of
from tests.compute.warm_runs import (
    DECODED,
    GRID,
    PREFILLED,
    cold_run,
    restored,
    tokens,
)

pytestmark = pytest.mark.usefixtures("either_order")

BLOCK = 16
LIMITS = SchedulerLimits(max_batch_size=8, prefill_chunk_tokens=32, max_batched_tokens=128)


def packed_leaves(caches: Caches) -> list[PackedKVCache]:
    return [leaf for leaf in leaves(caches) if isinstance(leaf, PackedKVCache)]


@every_pair
def test_warm_equals_cold_bit_for_bit(architecture: str, scheme: Scheme) -> None:
    """At every boundary of the grid and in decode, through eight trips to bytes and back, and with
    caches of the same class."""
    model = model_of(architecture, scheme.name).model
    codec = BlockCodec.of(model, BLOCK)
    assert codec is not None and scheme.name in codec.layout.format
    sequence = tokens("quantised", PREFILLED + DECODED)
    cold = cold_run(model, codec, sequence)
    for index, block in enumerate(cold.blocks):
        for _ in range(8):
            cold.blocks[index] = unpack(pack(cold.blocks[index]))
        assert same_bits(cold.blocks[index].buffers, block.detached().buffers)
    wraps = LayerKind.WINDOW in codec.layout.kinds
    stops = [GRID, 2 * GRID, PREFILLED, *(() if wraps else (PREFILLED + 1, PREFILLED + 20))]
    for stop in stops:
        caches = restored(codec, cold, stop)
        quantised = packed_leaves(caches)
        assert quantised and {type(leaf) for leaf in quantised} == {type(PackedKVCache(scheme))}
        width = GRID if stop < PREFILLED else 1
        warm = model(mx.array([sequence[stop : stop + width]]), cache=caches)[0]
        assert plain(mx.array_equal(warm, cold.logits[stop : stop + width])), stop


def answers(loaded: LoadedModel, asked: dict[str, list[int]], *, together: bool) -> Drive:
    drive = Drive(loaded, LIMITS, BLOCK if together else None)
    for number, (name, prompt) in enumerate(asked.items()):
        drive.add(name, prompt, sampling(6 + 5 * (number % 3)))
        if not together:
            drive.finish()
        for _ in range(number % 3):
            drive.step()
    drive.finish()
    return drive


@every_pair
def test_a_batch_answers_as_each_sequence_alone(architecture: str, scheme: Scheme) -> None:
    """Rows join late and leave early, prompts of different length are read in one forward that is
    padded on the right, and some start from stored blocks."""
    loaded = model_of(architecture, scheme.name)
    lengths = (12, 14, 15, 40, 41, 3, 70, 13)
    asked = {f"r{i}": tokens(i, length) for i, length in enumerate(lengths)}
    asked |= {"again": asked["r6"] + tokens("more", 9), "same": asked["r3"]}
    alone = answers(loaded, asked, together=False)
    batch = answers(loaded, asked, together=True)
    assert batch.admitted["again"].cached and batch.admitted["same"].cached
    assert batch.answers == alone.answers


@pytest.mark.parametrize("scheme", [TurboQuant.of_bits(4), TurboQuant.of_bits(3)], ids=named)
def test_the_laws_hold_for_what_turboquant_reads_on_a_gpu(
    scheme: Scheme, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "is_cpu", lambda: False)
    test_warm_equals_cold_bit_for_bit("llama", scheme)
    test_a_batch_answers_as_each_sequence_alone("llama", scheme)
