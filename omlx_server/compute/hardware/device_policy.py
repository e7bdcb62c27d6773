"""Sizes and order of work for a kind of device, and copies of caches in parts of such a size."""

from collections.abc import Iterable
from dataclasses import dataclass

import mlx.core as mx

from omlx_server.compute.hardware import device


@dataclass(frozen=True, slots=True)
class DevicePolicy:
    """Sizes of work, in tokens unless said."""

    beside_host: bool  # whether it pays to launch work before waiting for earlier work
    copied_at_once: int  # bytes of caches copied at a time when rows come or go
    chunk: int  # a chunk, where it is not measured for a model (core/chunk_sizes.py)
    halved: int  # the position from which chunks are halved, and again at each double
    longest_dispatch: float  # seconds of work submitted together; 0: no limit
    grouped: int  # the longest chunk that is computed in one forward with others
    places: int  # the most tokens of all rows of a decode, padding included
    joins: int  # the most prompts that join the batch in a step
    fused_widths: tuple[int, ...]  # head widths, ascending, for which attention makes no scores
    numbers: mx.Dtype  # of a GGUF file's scales, offsets and plain tensors; none becomes wider


# A launch takes as long as its work. Unfused attention computes what a causal mask discards: 1,024
# tokens took 10 % longer in chunks of 512 than of 256. The scores of a group of long chunks outgrow
# the processor's caches: 4 x 512 tokens in one forward took 1.4 times as long as one by one.
# Copying the batch takes about as long as a decode. Float32 holds the values of GGUF files exactly.
CPU = DevicePolicy(
    beside_host=False,
    copied_at_once=16 << 20,
    chunk=256,
    halved=1024,
    longest_dispatch=0.0,
    grouped=256,
    places=24,
    joins=1,
    fused_widths=(),
    numbers=mx.float32,
)
# A GPU waits for the weights, and so has time for more places. 512 tokens don't fill it (peers
# compute a fifth more per second in chunks of 2,048). Fused attention, for the head widths of MLX's
# Metal kernels, keeps no scores. 128 MB are copied in less time than a decode takes. Macs end a
# program whose command buffer takes seconds while a display waits (docs/trouble.md); MLX submits up
# to some 50 operations in one. Where nothing is measured, chunks are halved at a depth. Caches in
# float32 take twice the memory of those in bfloat16.
GPU = DevicePolicy(
    beside_host=True,
    copied_at_once=128 << 20,
    chunk=512,
    halved=65_536,
    longest_dispatch=0.2,
    grouped=512,
    places=64,
    joins=4,
    fused_widths=(64, 80, 128),
    numbers=mx.bfloat16,
)


def current() -> DevicePolicy:
    return CPU if device.is_cpu() else GPU


def slice_products() -> float:
    """Return the multiplications in a slice of work, as many as in a language model's chunk."""
    weights = 100e6 if device.is_cpu() else 1e9
    return current().chunk * weights


def compute_copies(arrays: Iterable[mx.array]) -> None:
    """Compute arrays in parts of `DevicePolicy.copied_at_once` bytes. When an array is taken
    from `arrays`, all before it are launched but the last part."""
    policy = current()
    # Beside the host one part runs while the next is made.
    most_bytes = policy.copied_at_once // 2 if policy.beside_host else policy.copied_at_once
    running, part, part_bytes = list[mx.array](), list[mx.array](), 0
    for array in arrays:
        if part and part_bytes + array.nbytes > most_bytes:
            running = _compute(part, running, beside_host=policy.beside_host)
            part, part_bytes = [], 0
        part.append(array)
        part_bytes += array.nbytes
    if part:
        _compute(part, [], beside_host=policy.beside_host)


def _compute(part: list[mx.array], running: list[mx.array], *, beside_host: bool) -> list[mx.array]:
    if not beside_host:
        device.wait_for(*part)
        return []
    if running:
        device.wait_for(*running)
    device.launch(*part)
    return part
