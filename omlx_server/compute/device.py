"""What MLX computes on, and which form of the starter model is fast there."""

import os
from pathlib import Path

import mlx.core as mx
from mlx_lm.utils import load_model, quantize_model, save_config, save_model

from omlx_server.core.memory import RAM_SHARE

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


def usable_memory() -> int:
    """Bytes that MLX can well use: a GPU's recommended working set, or a share of the RAM."""
    recommended = mx.device_info().get("max_recommended_working_set_size", 0)
    if isinstance(recommended, int) and recommended > 0:
        return recommended
    return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * RAM_SHARE)


def prefill_chunk_tokens() -> int:
    """The chunk that reads a prompt fastest. A GPU wants much work at a time; on the CPU backend
    the scores that a causal mask throws away cost as much as the others, and 1,024 tokens took
    10 % longer in chunks of 512 than of 256."""
    return 256 if is_cpu() else 512


def halve_chunks_at() -> int | None:
    """The depth at which attention takes about as long as all else, where it is not fused."""
    return 1024 if is_cpu() else None


def bound_pool(nbytes: int) -> None:
    """Keep at most this much freed memory for the next step."""
    mx.set_cache_limit(nbytes)


def drain_pool() -> None:
    """Give freed memory back to the machine."""
    mx.clear_cache()


def quantize_in_place(directory: Path) -> None:
    """Replace a float model directory by its 8-bit form with bfloat16 scales."""
    model, config = load_model(directory)
    model.set_dtype(mx.bfloat16)
    model, config = quantize_model(model, config, group_size=_GROUP_SIZE, bits=_BITS)
    for old in directory.glob("model*.safetensors"):
        old.unlink()
    save_model(directory, model, donate_model=True)
    save_config(config, directory / "config.json")
