"""One of two ranks that load saved models, and print what came of it: `python -m
tests.cluster.loading RANK PORT PORT` reads a directory from each line of its standard input, and
prints a line of JSON for it."""

import json
import select
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import psutil
from mlx.utils import tree_flatten
from mlx_lm.utils import load_model

from omlx_server.compute.cluster.part import loading_part
from omlx_server.compute.cluster.ranks import ConnectedRanks, connect_ranks
from omlx_server.compute.cluster.splitting import split_model
from omlx_server.compute.weights.weights import reading
from omlx_server.core.work import finish
from tests.cluster.group import free_ports, programs

SOON = 60.0  # seconds


@dataclass(frozen=True)
class Loaded:
    """What a rank's part of a model takes: its bytes, those that were read from files for it, and
    the most that arrays took meanwhile. `different`: its parameters that are not those of
    mlx-lm."""

    nbytes: int
    read: int
    peak: int
    different: list[str]


class Loading:
    """Two ranks that load models."""

    def __init__(self, processes: Sequence["subprocess.Popen[str]"]) -> None:
        self._processes = processes

    def loaded(self, directory: Path) -> list[tuple[Loaded, Loaded]]:
        """Per rank, how it loads a model, and how mlx-lm does it for the same part. Fails where a
        rank is gone: the other one may wait for it."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(f"{directory}\n")
            process.stdin.flush()
        answers = {process.stdout: "" for process in self._processes if process.stdout}
        while waiting := [stdout for stdout, line in answers.items() if not line]:
            ready, _, _ = select.select(waiting, [], [], SOON)
            assert ready, "no rank answers"
            for stdout in ready:
                answers[stdout] = stdout.readline()
                assert answers[stdout], "a rank is gone"
        found = [json.loads(line) for line in answers.values()]
        return [(Loaded(**ours), Loaded(**theirs)) for ours, theirs in found]


@contextmanager
def two_ranks() -> Iterator[Loading]:
    with programs("tests.cluster.loading", 2, free_ports(2)) as processes:
        yield Loading(processes)


def by_mlx(directory: Path, ranks: ConnectedRanks) -> nn.Module:
    model: nn.Module = load_model(directory, lazy=True)[0]
    split_model(model, ranks)
    finish(reading(model, directory))
    return model


def ours(directory: Path, ranks: ConnectedRanks) -> nn.Module:
    return finish(loading_part(directory, ranks, "the same")).model


def both(directory: Path, ranks: ConnectedRanks) -> list[Loaded]:
    load_model(directory, lazy=True)  # the class is imported, which reads files too
    _, theirs = measured(by_mlx, directory, ranks)
    model, own = measured(ours, directory, ranks)
    wanted, found = parameters(by_mlx(directory, ranks)), parameters(model)
    different = sorted(wanted.keys() ^ found.keys())
    different += [name for name in wanted.keys() & found.keys() if wanted[name] != found[name]]
    return [Loaded(*own, different), Loaded(*theirs, [])]


def measured(
    load: Callable[[Path, ConnectedRanks], nn.Module], directory: Path, ranks: ConnectedRanks
) -> tuple[nn.Module, tuple[int, int, int]]:
    """What was loaded; its bytes, those that were read for it, and the most that arrays took."""
    mx.clear_cache()
    mx.reset_peak_memory()
    before, read = mx.get_active_memory(), bytes_read()
    model = load(directory, ranks)
    read = bytes_read() - read
    nbytes, peak = mx.get_active_memory() - before, mx.get_peak_memory() - before
    return model, (nbytes, read, peak)


def bytes_read() -> int:
    """All that this process has read from files and pipes, where the system counts it."""
    counters = getattr(psutil.Process(), "io_counters", None)
    return int(counters().read_chars) if counters is not None else 0


def parameters(model: nn.Module) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """All parameters of a model, to the bit."""
    leaves = dict(tree_flatten(model.parameters()))
    return {
        name: (str(leaf.dtype), leaf.shape, bytes(memoryview(leaf.reshape(-1).view(mx.uint8))))
        for name, leaf in leaves.items()
    }


def main(rank: int, ports: Sequence[str]) -> None:
    ranks = connect_ranks([[f"127.0.0.1:{port}"] for port in ports], rank)
    for line in sys.stdin:
        found = both(Path(line.strip()), ConnectedRanks(ranks.rank, ranks.size, ranks.group))
        sys.stdout.write(json.dumps([asdict(each) for each in found]) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
