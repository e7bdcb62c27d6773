"""What the block cache takes, by MLX's own account. Arrays are of real size: MLX hands a slice out
with up to 16 KiB of its parent's buffer, so smaller ones would show nothing.
"""

import gc
from collections.abc import Sequence

import mlx.core as mx
import pytest

from omlx_server.compute import caches as cache_ops
from omlx_server.compute.caches import Caches
from omlx_server.compute.codecs.base import CacheRow
from omlx_server.compute.hardware import device, heap
from omlx_server.compute.model.loader import LoadedModel
from omlx_server.compute.payload import BlockCodec, Payload
from omlx_server.core.memory.kv import GROWTH
from omlx_server.core.scheduler.limits import SchedulerLimits
from tests.compute.drive import ROOMY, Drive, sampling
from tests.sweeps import sweep
from tests.tiny_models import CONFIGS, load_tiny

BLOCK = 64
TOKENS = 512
SLACK = 16 * 1024  # of MLX, for each buffer
LIMITS = SchedulerLimits(max_batch_size=4, prefill_chunk_tokens=128, max_batched_tokens=256)


def large(architecture: str) -> LoadedModel:
    """Little to compute, much to remember: 4 KiB of KV a token and layer, 256 KiB of state."""
    wide = {"head_dim": 128, "num_key_value_heads": 4}
    if architecture == "qwen3_next":
        wide |= {"linear_key_head_dim": 128, "linear_value_head_dim": 128}
    if architecture == "gemma3_text":
        wide |= {"sliding_window": 128}
    if architecture == "llama4":
        text = {**CONFIGS["llama4"]["text_config"], **wide, "attention_chunk_size": 128}
        return load_tiny("llama4", text_config=text)
    return load_tiny(architecture, **wide)


def codec_of(loaded: LoadedModel) -> BlockCodec:
    codec = BlockCodec.of(loaded.model, BLOCK)
    assert codec is not None and codec.layout.block_size == BLOCK
    return codec


def active() -> int:
    gc.collect()
    mx.synchronize()
    mx.clear_cache()
    return int(mx.get_active_memory())


def filled(loaded: LoadedModel, rows: int, tokens: int = TOKENS) -> Caches:
    caches = cache_ops.new_caches(loaded.model)
    loaded.model(mx.array([[i % 100 for i in range(tokens)]]), cache=caches)
    cache_ops.evaluate(caches, wait=True)
    if rows > 1:
        caches = cache_ops.merge([caches] * rows)
        cache_ops.evaluate(caches, wait=True)
    return caches


def evaluated(payloads: Sequence[Payload]) -> list[Payload]:
    mx.eval([payload.buffers for payload in payloads])
    return list(payloads)


def takes(payloads: Sequence[Payload]) -> int:
    return sum(payload.nbytes for payload in payloads)


@pytest.mark.parametrize(
    ("architecture", "rows"), sweep(["llama", "gemma3_text", "qwen3_next"], [4, 1])
)
def test_what_is_stored_keeps_nothing_else_alive(architecture: str, rows: int) -> None:
    loaded = large(architecture)
    codec = codec_of(loaded)
    filled(loaded, rows)  # kernels are compiled now
    baseline = active()
    caches = filled(loaded, rows)
    row = CacheRow(rows - 1, TOKENS)
    payloads = [codec.cut_block(caches, row, TOKENS - BLOCK, TOKENS)]
    if codec.layout.checkpointed:
        payloads.append(codec.cut_checkpoint(caches, row))
    evaluated(payloads)
    whole = active() - baseline
    cache_ops.hand_over(caches)
    del caches
    codec.runs.tidy(wholly=True)
    left = active() - baseline
    buffers = sum(len(payload.buffers) for payload in payloads)
    assert takes(payloads) > 4 * 64 * 1024
    assert whole > 2 * takes(payloads)
    assert takes(payloads) <= left <= takes(payloads) + buffers * SLACK


def test_layers_of_one_shape_are_one_buffer() -> None:
    """Metal bounds the number of buffers, whatever their size."""
    for architecture, buffers in (("llama", 1), ("gemma3_text", 1), ("qwen3_next", 1)):
        loaded = large(architecture)
        caches = filled(loaded, 1)
        payload = codec_of(loaded).cut_block(caches, CacheRow(0, TOKENS), TOKENS - BLOCK, TOKENS)
        assert len(payload.detached().buffers) == buffers


@pytest.mark.parametrize(
    ("architecture", "stop"),
    sweep(["llama", "llama4", "qwen3_next"], [TOKENS, TOKENS - 1, TOKENS - 100]),
)
def test_a_restore_takes_what_it_restores_and_one_spare_tail(architecture: str, stop: int) -> None:
    loaded = large(architecture)
    codec = codec_of(loaded)
    payloads = _stored(loaded, codec, stop)
    state = payloads.pop() if codec.layout.checkpointed else None
    cache_ops.evaluate(codec.join(payloads, state, stop), wait=True)  # kernels are compiled now
    before = active()
    mx.reset_peak_memory()
    caches = codec.join(payloads, state, stop)
    cache_ops.evaluate(caches, wait=True)
    peak = mx.get_peak_memory() - before
    token = payloads[0].nbytes // BLOCK
    # What was restored once is in a run, to which the second restore refers.
    copied = stop % BLOCK if codec.layout.refers else stop
    allowed = (copied + GROWTH) * token + (state.nbytes if state else 0)
    assert max(active() - before, peak) <= allowed + 1024  # zeros are a broadcast scalar
    assert caches[-1].offset == stop


def _stored(loaded: LoadedModel, codec: BlockCodec, stop: int) -> list[Payload]:
    """All blocks of a sequence, cut as the chunks pass, and its state at `stop`."""
    caches = cache_ops.new_caches(loaded.model)
    payloads = []
    tokens = [i % 100 for i in range(stop)]
    for start in range(0, stop, BLOCK):
        end = min(stop, start + BLOCK)
        loaded.model(mx.array([tokens[start:end]]), cache=caches)
        payloads += evaluated([codec.cut_block(caches, CacheRow(0, end), start, end)])
    if codec.layout.checkpointed:
        payloads += evaluated([codec.cut_checkpoint(caches, CacheRow(0, stop))])
    return payloads


@pytest.mark.parametrize("architecture", ["llama", "gemma3_text", "qwen3_next"])
def test_what_is_evicted_is_given_back(architecture: str) -> None:
    """Requests, hits and a cancelled one; what is left when all blocks have gone is nothing."""
    drive = Drive(large(architecture), LIMITS, BLOCK, ROOMY)

    def work(turn: int) -> None:
        for number in range(4):
            prompt = [(i * (number + 1) + turn) % 150 for i in range(300)]
            drive.add(f"{turn}-{number}", prompt, sampling(70))
            drive.add(f"{turn}-{number}-again", prompt[:200], sampling(5))
            for _ in range(4):
                drive.step()
        drive.cancel(f"{turn}-3")
        drive.finish()

    work(0)
    drive.instance.reset_cache()
    baseline = active()
    work(1)
    stored = drive.instance.cache.index.nbytes
    held = active() - baseline
    assert stored > 5e6
    assert abs(held - stored) < drive.instance.cache.index.buffers * SLACK
    drive.instance.reset_cache()
    assert len(drive.instance.cache.index) == 0
    assert abs(active() - baseline) < 4 * SLACK


@pytest.mark.parametrize("architecture", ["llama", "gemma3_text", "qwen3_next"])
def test_thirty_identical_prompts_leave_bytes_constant(architecture: str) -> None:
    drive = Drive(large(architecture), LIMITS, BLOCK, ROOMY)
    prompt = [i % 97 for i in range(200)]
    first = [drive.answer(f"warm-up-{i}", prompt, 4) for i in range(3)]
    index = drive.instance.cache.index
    books = index.nbytes, len(index), index.checkpoint_count, len(drive.hot)
    memory = active()
    for number in range(30):
        assert drive.answer(f"r{number}", prompt, 4) == first[0]
        assert (index.nbytes, len(index), index.checkpoint_count, len(drive.hot)) == books
    assert abs(active() - memory) < 4 * SLACK


def test_a_reset_does_not_wait_for_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes 0.3 s for each GB that was freed, whoever freed it, and others have their turn."""
    waited = list[None]()
    monkeypatch.setattr(heap, "return_freed", lambda: waited.append(None))
    drive = Drive(large("llama"), LIMITS, BLOCK, ROOMY)
    drive.answer("one", [i % 97 for i in range(200)], 4)
    drive.instance.reset_cache()
    assert device.pool_memory() == 0
    assert not waited
