"""The group of processes that compute one model together, on mx.distributed. Mlx thread.

Source: MLX, "Distributed Communication".
"""

import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import mlx.core as mx

from omlx_server.compute.cluster.unblocking import PATIENCE_SECONDS, Unblocking
from omlx_server.compute.hardware import device
from omlx_server.core.cluster.commands import Command
from omlx_server.core.cluster.hosts import Devices
from omlx_server.errors import ModelUnavailable, one_line


@dataclass(slots=True, eq=False)
class Ranks:
    """This process's `rank` in a `group` of `size`. Rank 0 calls `tell` with each command before it
    runs it. `by_layers`: the model is split by layers."""

    rank: int
    size: int
    group: mx.distributed.Group
    tell: Callable[[Command], None] = field(default=lambda command: None)
    by_layers: bool = False

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def shared(self, tokens: mx.array) -> mx.array:
        """Return rank 0's tokens on every rank. Rank 0 uses its own: without a neighbour a sum
        holds garbage."""
        local = tokens if self.leads else mx.zeros_like(tokens)
        shared = mx.distributed.all_sum(local, group=self.group)
        if self.by_layers:  # else only the rank that has the first layer would take part
            device.launch(shared)
        return mx.depends([local], [shared])[0] if self.leads else shared

    def least(self, number: int) -> int:
        """All ranks must call it. Waits."""
        return self._of_all(mx.distributed.all_min, number)

    def most(self, number: int) -> int:
        """All ranks must call it. Waits."""
        return self._of_all(mx.distributed.all_max, number)

    def time_sums(self, nbytes: int, rounds: int) -> list[float]:
        """Return the seconds of each of `rounds` sums of float16 [nbytes / 2]. All ranks must
        call it."""
        array, times = mx.zeros((nbytes // 2,), dtype=mx.float16), list[float]()
        for _ in range(1 + rounds):
            began = time.perf_counter()
            device.wait_for(mx.distributed.all_sum(array, group=self.group))
            times.append(time.perf_counter() - began)
        return times[1:]

    def _of_all(self, reduce: Callable[..., mx.array], number: int) -> int:
        local = mx.array([number], dtype=mx.int64)
        all_of_them = reduce(local, group=self.group, stream=mx.cpu)
        device.wait_for(all_of_them)  # which gives up the GIL, as `item` does not
        result: int = all_of_them.item()  # type: ignore[assignment]
        return result


def form(
    addresses: Sequence[Sequence[str]], rank: int, backend: str = "ring", rdma: Devices = ()
) -> Ranks:
    """Connect with the other ranks, once in a process. `addresses` are each rank's "IP:port"s,
    `rdma` the devices for "jaccl". Raises ModelUnavailable, or TimeoutError if a rank is
    missing; then this process can't join a group."""
    with tempfile.TemporaryDirectory() as directory:
        os.environ.update(environment(Path(directory), addresses, rank, backend, rdma))
        right = addresses[(rank + 1) % len(addresses)]
        rings = backend == "ring"
        with Unblocking(addresses[rank], right) if rings else nullcontext() as unblocking:
            try:
                group = mx.distributed.init(strict=True, backend=backend)
            except (RuntimeError, ValueError) as error:
                why = one_line(error)
                message = f"rank {rank} can't connect with the others: {why}"
                raise ModelUnavailable(message) from error
    if unblocking is not None and unblocking.was_late:
        raise TimeoutError(f"the ranks were not connected within {PATIENCE_SECONDS:.0f} s")
    return Ranks(group.rank(), group.size(), group)


def tells_of_loss(error: Exception) -> bool:
    """Return whether an error of MLX says that a neighbour is gone."""
    return isinstance(error, RuntimeError) and str(error).startswith("[ring]")


def environment(
    directory: Path, addresses: Sequence[Sequence[str]], rank: int, backend: str, rdma: Devices
) -> dict[str, str]:
    """Return MLX's environment variables. Writes a file into `directory`."""
    file, variables = directory / "group.json", {"MLX_RANK": str(rank)}
    if backend == "jaccl":
        file.write_text(json.dumps(rdma), encoding="utf-8")
        first = addresses[0][0]  # at which rank 0 listens until all have met
        return {**variables, "MLX_IBV_DEVICES": str(file), "MLX_JACCL_COORDINATOR": first}
    file.write_text(json.dumps(addresses), encoding="utf-8")
    return {**variables, "MLX_HOSTFILE": str(file)}
