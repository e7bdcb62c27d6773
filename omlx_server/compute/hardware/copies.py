"""Computes the copies of caches when rows come or go."""

from collections.abc import Iterable

import mlx.core as mx

from omlx_server.compute.hardware import device, device_policy


def compute_copies(arrays: Iterable[mx.array]) -> None:
    """Compute arrays in parts of `DevicePolicy.copied_at_once` bytes. When an array is taken
    from `arrays`, all before it are launched but the last part."""
    policy = device_policy.current()
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
