"""What MLX computes on, and which form of the starter model is fast there."""

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
    """The device in words, for the log."""
    return "CPU" if is_cpu() else str(mx.device_info().get("device_name", "GPU"))


def working_set() -> int | None:
    """Bytes that a GPU recommends to use at most; None where there is no such figure."""
    recommended = mx.device_info().get("max_recommended_working_set_size", 0)
    return recommended if isinstance(recommended, int) and recommended > 0 else None


def active_memory() -> int:
    """Bytes of all arrays, as MLX counts them."""
    return mx.get_active_memory()


def pool_memory() -> int:
    """Bytes of freed buffers that wait for their next use."""
    return mx.get_cache_memory()


def begin_peak() -> None:
    """From here on `peak_memory` counts."""
    mx.reset_peak_memory()


def peak_memory() -> int:
    """The most that arrays took at once since `begin_peak`."""
    return mx.get_peak_memory()


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed, which says nothing about the request that wanted it. MLX has
    no type for it. (Its CPU backend does not raise where malloc fails: the process dies.)"""
    text = str(error).lower()
    words = ("unable to allocate", "out of memory", "outofmemory", "insufficient memory")
    return isinstance(error, MemoryError) or any(word in text for word in words)


def prefill_chunk_tokens() -> int:
    """The chunk with which a prompt is prefilled fastest. A GPU wants much work at a time; on the
    CPU backend the scores that a causal mask throws away cost as much as the others, and 1,024
    tokens took 10 % longer in chunks of 512 than of 256."""
    return 256 if is_cpu() else 512


def halve_chunks_at() -> int | None:
    """The depth at which attention takes about as long as all else, where it is not fused."""
    return 1024 if is_cpu() else None


def most_places() -> int:
    """How many tokens, of all rows and with padding, a decode step takes without being much slower
    than with one of each row. A GPU waits for the weights meanwhile; a CPU computes all along."""
    return 24 if is_cpu() else 64


def most_joins() -> int:
    """How many prompts may join the batch in a step. Each copies the batch, in which a CPU takes
    about as long as in a decode."""
    return 1 if is_cpu() else 4


def wait() -> None:
    """Until all that was launched is done."""
    mx.synchronize()


def bound(limit: int, *, pool: int) -> None:
    """Hold at most `pool` bytes in freed buffers. On Metal, what is held up to `limit` stays in
    memory however much other apps want (macOS 15 and later)."""
    mx.set_cache_limit(pool)
    wired = wired_bytes(limit, working_set())
    if wired:
        mx.set_wired_limit(wired)


def drain_pool() -> None:
    """Free the buffers that wait for their next use."""
    mx.clear_cache()


def give_back() -> None:
    """Free the buffers that wait for their next use, and have the system get what was freed."""
    mx.clear_cache()
    heap.return_freed()


def quantize_in_place(directory: Path) -> None:
    """Replace a float model directory by its 8-bit form with bfloat16 scales."""
    model, config = load_model(directory)
    model.set_dtype(mx.bfloat16)
    model, config = quantize_model(model, config, group_size=_GROUP_SIZE, bits=_BITS)
    for old in directory.glob("model*.safetensors"):
        old.unlink()
    save_model(directory, model, donate_model=True)
    save_config(config, directory / "config.json")
