"""The group of processes that compute one model together, on mx.distributed. Mlx thread. Source:
MLX, "Distributed Communication"."""

import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path

import mlx.core as mx

from omlx_server.compute.cluster.unblocking import PATIENCE_SECONDS, Unblocking
from omlx_server.compute.hardware import device
from omlx_server.core.blocks.block import PayloadId
from omlx_server.core.blocks.keys import BlockKey
from omlx_server.core.blocks.record import Recalled, Record
from omlx_server.core.cluster import commands
from omlx_server.core.cluster.commands import Command
from omlx_server.core.cluster.followers import Followers
from omlx_server.core.cluster.hosts import Devices
from omlx_server.core.crash import Crash
from omlx_server.core.memory.kv import Decode, PrefillShape
from omlx_server.core.ranks import Ranks
from omlx_server.core.step import Chunk, SequenceId, Step
from omlx_server.errors import ModelUnavailable, one_line


class ConnectedRanks(Ranks):
    """This process's `rank` in a `group` of `size`. On rank 0, once it leads, each command goes to
    the others. `by_layers`: the model is split by layers."""

    def __init__(self, rank: int, size: int, group: mx.distributed.Group) -> None:
        self.rank = rank
        self.size = size
        self.leads = rank == 0
        self.are_several = size > 1
        self.group = group
        self.by_layers = False
        self.lead(lambda command: None)

    def lead(self, tell: Callable[[Command], None]) -> None:
        """Send the commands of rank 0 with `tell` from now on."""
        self._tell = tell
        self.followers = Followers(tell, self.size - 1)

    def shared(self, tokens: mx.array) -> mx.array:  # type: ignore[override]
        # Rank 0 uses its own tokens: without a neighbour a sum holds garbage.
        local = tokens if self.leads else mx.zeros_like(tokens)
        shared = mx.distributed.all_sum(local, group=self.group)
        if self.by_layers:  # else only the rank that has the first layer would take part
            device.launch(shared)
        return mx.depends([local], [shared])[0] if self.leads else shared

    def least(self, number: int) -> int:
        """Return the smallest number of all ranks. All must call it."""
        return self._reduce_over_ranks(mx.distributed.all_min, number)

    def most(self, number: int) -> int:
        return self._reduce_over_ranks(mx.distributed.all_max, number)

    def time_sums(self, nbytes: int, rounds: int) -> list[float]:
        """Return the seconds of `rounds` sums of float16 [nbytes / 2]. All ranks must call it."""
        array, times = mx.zeros((nbytes // 2,), dtype=mx.float16), list[float]()
        for _ in range(1 + rounds):
            began = time.perf_counter()
            device.wait_for(mx.distributed.all_sum(array, group=self.group))
            times.append(time.perf_counter() - began)
        return times[1:]  # without the first, which warms up

    def _reduce_over_ranks(self, reduce: Callable[..., mx.array], number: int) -> int:
        local = mx.array([number], dtype=mx.int64)
        all_of_them = reduce(local, group=self.group, stream=mx.cpu)
        device.wait_for(all_of_them)  # which gives up the GIL, as `item` does not
        result: int = all_of_them.item()  # type: ignore[assignment]
        return result

    def has_lost_one(self, error: Exception) -> bool:
        return tells_of_loss(error)

    # -- what the others are told --------------------------------------------------------

    def decode(self, step: Step, drafts: Mapping[SequenceId, tuple[int, ...]]) -> None:
        self._tell(commands.LaunchStep(commands.without_samples(step, drafts)))

    def accept(self, right: Sequence[int], newest: Sequence[int]) -> None:
        self._tell(commands.Accept(right, newest))

    def prefill(self, step: Step, chunks: Sequence[Chunk]) -> None:
        self._tell(commands.Chunks(commands.chunks_of(step, chunks)))

    def reset(self, *, blocks: bool = False) -> None:
        self._tell(commands.Reset(blocks))

    def fail(self, crash: Crash) -> str:
        return self.followers.fail(crash)

    def feed_one_token(self) -> None:
        self._tell(commands.OneToken())

    def feed(self, tokens: int) -> None:
        self._tell(commands.Width(tokens))

    def probe(
        self, kind: str, prefill: PrefillShape | None = None, decode: Decode | None = None
    ) -> None:
        self._tell(commands.ProbeForward(kind, prefill, decode))

    def score(self, job: int, tokens: Sequence[int]) -> None:
        self._tell(commands.Score(job, tuple(tokens)))

    def keep(self, cut: int, block: PayloadId | None, checkpoint: PayloadId | None) -> None:
        self._tell(commands.CutIds(cut, block, checkpoint))

    def drop(self, ids: Sequence[PayloadId]) -> None:
        self._tell(commands.Drop(tuple(ids)))

    def tidy(self, *, wholly: bool) -> None:
        self._tell(commands.Tidy(wholly))

    def write(self, id: PayloadId, record: Record) -> None:
        self._tell(commands.WritePayload(id, record))

    def read(self, record: Record, patience: float) -> None:
        self.followers.read(record, patience)

    def takes(self, recalled: Recalled) -> bool:
        self.followers.note_own_read(recalled)
        return True

    def complete_reads(self) -> Sequence[tuple[int, Recalled]]:
        return self.followers.take_complete()

    def promote(self, read: int, id: PayloadId | None) -> None:
        self._tell(commands.Promote(read, id))

    def clear(self, keys: Sequence[BlockKey] | None) -> None:
        self._tell(commands.Clear(keys))

    def clear_all(self) -> None:
        self._tell(commands.ClearAll())


def connect_ranks(
    addresses: Sequence[Sequence[str]], rank: int, backend: str = "ring", rdma: Devices = ()
) -> ConnectedRanks:
    """Connect with the other ranks, once in a process. `addresses` are each rank's "IP:port"s,
    `rdma` the devices for "jaccl". Raises ModelUnavailable, or TimeoutError if a rank is
    missing; then this process can't join a group."""
    with tempfile.TemporaryDirectory() as directory:
        os.environ.update(mlx_environment(Path(directory), addresses, rank, backend, rdma))
        right = addresses[(rank + 1) % len(addresses)]
        is_ring = backend == "ring"
        with Unblocking(addresses[rank], right) if is_ring else nullcontext() as unblocking:
            try:
                group = mx.distributed.init(strict=True, backend=backend)
            except (RuntimeError, ValueError) as error:
                why = one_line(error)
                message = f"rank {rank} can't connect with the others: {why}"
                raise ModelUnavailable(message) from error
    if unblocking is not None and unblocking.was_late:
        raise TimeoutError(f"the ranks were not connected within {PATIENCE_SECONDS:.0f} s")
    return ConnectedRanks(group.rank(), group.size(), group)


def tells_of_loss(error: Exception) -> bool:
    """Return whether an error of MLX says that a neighbour is gone."""
    return isinstance(error, RuntimeError) and str(error).startswith("[ring]")


def mlx_environment(
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
