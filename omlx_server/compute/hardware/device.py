"""MLX's device: its memory, and what is launched on it and waited for."""

from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.utils import load_model, quantize_model, save_config, save_model

from omlx_server.compute.hardware import heap

# Metal refuses to allocate more buffers than this, whatever their size.
MAX_BUFFERS = 499_000

active_memory = mx.get_active_memory  # bytes of live arrays
pool_memory = mx.get_cache_memory  # bytes of freed buffers that MLX keeps
begin_peak = mx.reset_peak_memory
peak_memory = mx.get_peak_memory  # the most bytes of live arrays since `begin_peak`
wait = mx.synchronize
drain_pool = mx.clear_cache

_CONVERTED_BITS = 8
_CONVERTED_GROUP_SIZE = 64


def is_cpu() -> bool:
    return mx.default_device() == mx.Device(mx.cpu)


def name() -> str:
    return "CPU" if is_cpu() else str(mx.device_info().get("device_name", "GPU"))


def working_set() -> int | None:
    """Return the most bytes that a GPU recommends to use, if it says."""
    recommended = mx.device_info().get("max_recommended_working_set_size", 0)
    return recommended if isinstance(recommended, int) and recommended > 0 else None


def launch(*arrays: Any) -> None:
    mx.async_eval(*arrays)


def wait_for(*arrays: Any) -> None:
    """Launch arrays, or trees of them, and wait for them."""
    mx.eval(*arrays)


def to_host(array: mx.array) -> Any:
    """Return an array's numbers in lists. Waits."""
    return array.tolist()


def limit_memory(*, pool: int, wired: int) -> None:
    """Keep at most `pool` bytes of freed buffers, and wire up to `wired` bytes. With 0 MLX is never
    asked to: Macs have panicked with wired memory and evictions (docs/memory.md)."""
    mx.set_cache_limit(pool)
    if wired:
        mx.set_wired_limit(wired)


def give_back() -> None:
    """Free the pool, and give freed memory back to the system."""
    mx.clear_cache()
    heap.return_freed()


def quantize_in_place(directory: Path) -> None:
    """Quantise the float model in `directory` to 8 bits, with bfloat16 scales."""
    model, config = load_model(directory)
    model.set_dtype(mx.bfloat16)
    model, config = quantize_model(
        model, config, group_size=_CONVERTED_GROUP_SIZE, bits=_CONVERTED_BITS
    )
    for old in directory.glob("model*.safetensors"):
        old.unlink()
    save_model(directory, model, donate_model=True)
    save_config(config, directory / "config.json")
