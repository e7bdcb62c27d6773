"""The device that MLX computes on: its memory, and which sizes of work are fast on it."""

from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx
from mlx_lm.utils import load_model, quantize_model, save_config, save_model

from omlx_server.compute.hardware import heap
from omlx_server.core.memory.budgets import wired_bytes

# Metal refuses to allocate more buffers than this, whatever their size.
MAX_BUFFERS = 499_000

_BITS = 8
_GROUP_SIZE = 64


def is_cpu() -> bool:
    """Whether the default device is the CPU backend, where only float32 is fast."""
    return mx.default_device() == mx.Device(mx.cpu)


def name() -> str:
    """The device in words, for the log and for the keys of what holds on this device only."""
    return "CPU" if is_cpu() else str(mx.device_info().get("device_name", "GPU"))


def working_set() -> int | None:
    """The most bytes that a GPU recommends to use; None where the device has no such figure."""
    recommended = mx.device_info().get("max_recommended_working_set_size", 0)
    return recommended if isinstance(recommended, int) and recommended > 0 else None


def active_memory() -> int:
    """Bytes of all arrays that are alive, as MLX counts them."""
    return mx.get_active_memory()


def pool_memory() -> int:
    """Bytes of freed buffers that MLX keeps in its pool for their next use."""
    return mx.get_cache_memory()


def begin_peak() -> None:
    """Make `peak_memory` begin anew."""
    mx.reset_peak_memory()


def peak_memory() -> int:
    """The most bytes that arrays took at any moment since `begin_peak`."""
    return mx.get_peak_memory()


def is_out_of_memory(error: BaseException) -> bool:
    """Whether `error` says that an allocation failed. That is no fault of the request that was
    being computed. MLX has no exception class for it, so the message decides. (MLX's CPU backend
    does not raise when malloc fails: the process dies.)"""
    text = str(error).lower()
    words = ("unable to allocate", "out of memory", "outofmemory", "insufficient memory")
    return isinstance(error, MemoryError) or any(word in text for word in words)


@dataclass(frozen=True, slots=True)
class WorkSizes:
    """Which sizes of work are fast on a kind of device, in tokens of the prompt unless said.

    chunk     a chunk, where it is not measured for a model (core/chunk_sizes.py)
    halved    the position from which chunks are halved, because attention that is not fused takes
              about as long there as all other work; None where attention is fused
    grouped   the longest chunk that is computed in one forward with others
    places    how many tokens of all rows together, padding counted, can be fed to one decode before
              it is much slower than with one token for each row
    joins     how many prompts may join the batch in one step, which is copied for each of them
    """

    chunk: int
    halved: int | None
    grouped: int
    places: int
    joins: int


# Attention is not fused: the scores that a causal mask discards cost as much as the others, so
# 1,024 tokens took 10 % longer in chunks of 512 than in chunks of 256. The scores of a group of
# long chunks outgrow the caches of the processor: 4 x 512 tokens in one forward took 1.4 times as
# long as one after the other. To copy the batch takes about as long as a decode.
_CPU = WorkSizes(chunk=256, halved=1024, grouped=256, places=24, joins=1)
# A GPU needs much work at a time, and has time for more places because it waits for the weights.
# 512 tokens don't fill it (peers compute a fifth more per second in chunks of 2,048), and its fused
# attention keeps no scores.
_GPU = WorkSizes(chunk=512, halved=None, grouped=512, places=64, joins=4)


def _sizes() -> WorkSizes:
    return _CPU if is_cpu() else _GPU


def prefill_chunk_tokens() -> int:
    """See `WorkSizes.chunk`."""
    return _sizes().chunk


def halve_chunks_at() -> int | None:
    """See `WorkSizes.halved`."""
    return _sizes().halved


def grouped_tokens() -> int:
    """See `WorkSizes.grouped`."""
    return _sizes().grouped


def most_places() -> int:
    """See `WorkSizes.places`."""
    return _sizes().places


def most_joins() -> int:
    """See `WorkSizes.joins`."""
    return _sizes().joins


def wait() -> None:
    """Wait until the device has done all the work that was launched."""
    mx.synchronize()


def bound(limit: int, *, pool: int) -> None:
    """Make MLX keep at most `pool` bytes of freed buffers. On Metal, also wire up to `limit` bytes
    of arrays, at most the working set, so that other apps can't have them paged out (macOS 15 and
    later)."""
    mx.set_cache_limit(pool)
    wired = wired_bytes(limit, working_set())
    if wired:
        mx.set_wired_limit(wired)


def drain_pool() -> None:
    """Free the buffers in MLX's pool."""
    mx.clear_cache()


def give_back() -> None:
    """Free the buffers in MLX's pool, and give freed memory back to the operating system."""
    mx.clear_cache()
    heap.return_freed()


def quantize_in_place(directory: Path) -> None:
    """Quantise the float model in `directory` to 8 bits, with bfloat16 scales. Replaces its weight
    files and its config.json."""
    model, config = load_model(directory)
    model.set_dtype(mx.bfloat16)
    model, config = quantize_model(model, config, group_size=_GROUP_SIZE, bits=_BITS)
    for old in directory.glob("model*.safetensors"):
        old.unlink()
    save_model(directory, model, donate_model=True)
    save_config(config, directory / "config.json")
