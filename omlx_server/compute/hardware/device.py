"""The device that MLX computes on: its memory, what is launched on it and waited for.

In which order, and in pieces of which sizes, says compute/hardware/device_policy.py.
"""

from pathlib import Path
from typing import Any

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


def launch(*arrays: Any) -> None:
    """Have the device compute arrays, or trees of them, behind what was launched before, and go
    on."""
    mx.async_eval(*arrays)


def wait_for(*arrays: Any) -> None:
    """Launch arrays, or trees of them, unless that was done before, and wait until the
    device has them."""
    mx.eval(*arrays)


def to_host(array: mx.array) -> Any:
    """The numbers of an array, as Python's, in lists. Waits for the device."""
    return array.tolist()


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
