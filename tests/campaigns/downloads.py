"""How much faster a download is than one stream, from a hub in a process of its own.

The hub has a delay before each answer and a rate for each connection, as a CDN has. One stream
fetches the same files one after the other, over the same client. The short form is
tests/models/hub/test_transfer.py, which counts what a hub is asked at once.
"""

import multiprocessing
import random
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from huggingface_hub import get_session

from omlx_server.models.hub.transfer import FileTransfer, transfer
from tests.models import fake_hub
from tests.models.fake_hub import COMMIT, Faults, Seen

REPO = "acme/large"
_CHUNK_BYTES = 1 << 18
_GAIN = 5.0


@dataclass(frozen=True, slots=True)
class Load:
    """`megabytes` in so many `files`; `delay` in seconds; `rate` in bytes a second."""

    name: str
    megabytes: int
    files: int
    delay: float
    rate: float


LOADS = (
    Load("one large file", 64, 1, 0.02, 4e6),
    Load("16 shards", 64, 16, 0.02, 4e6),
    Load("200 small files, no rate", 10, 200, 0.02, 0.0),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Seconds of one stream and of a transfer; the most answers that the hub gave at once; how many
    bytes the most memory of this process grew by."""

    load: Load
    one_stream: float
    ours: float
    peak: int
    grown: int

    @property
    def gain(self) -> float:
        return self.one_stream / self.ours

    @property
    def is_right(self) -> bool:
        return self.gain >= _GAIN

    def __str__(self) -> str:
        return (
            f"{self.load.name}: {self.load.megabytes} MB, one stream {self.one_stream:.1f} s, ours "
            f"{self.ours:.1f} s, {self.gain:.1f} times; {self.peak} connections, "
            f"{self.grown / 1e6:.0f} MB of memory more"
        )


def campaign(
    directory: Path, loads: Sequence[Load] = LOADS, *, say: Callable[[str], None]
) -> list[Outcome]:
    outcomes = []
    for load in loads:
        outcomes.append(_measured(load, directory / load.name.replace(" ", "-")))
        say(str(outcomes[-1]))
    return outcomes


def _measured(load: Load, directory: Path) -> Outcome:
    files = _files(load)
    with _hub(load) as (address, hub):
        urls = {name: f"{address}/{REPO}/resolve/{COMMIT}/{name}" for name in files}
        wanted = [
            FileTransfer(url, directory / f"{name}.incomplete", directory / name, len(files[name]))
            for name, url in urls.items()
        ]
        begun = time.monotonic()
        for url in urls.values():
            _stream(url)
        one_stream, before = time.monotonic() - begun, _most_memory()
        begun = time.monotonic()
        transfer(wanted, (), lambda done: None)
        ours = time.monotonic() - begun
        grown = _most_memory() - before
        hub.send("peak")
        peak = int(hub.recv())
    for name, data in files.items():
        assert (directory / name).read_bytes() == data, name
    return Outcome(load, one_stream, ours, peak, grown)


def _files(load: Load) -> dict[str, bytes]:
    data = random.Random(5).randbytes(load.megabytes * 1_000_000 // load.files)
    return {f"model-{n:05}.safetensors": data for n in range(load.files)}


def _stream(url: str) -> None:
    with get_session().stream("GET", url, timeout=60.0) as response:
        for _ in response.iter_raw(_CHUNK_BYTES):
            pass


def _most_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@contextmanager
def _hub(load: Load) -> Iterator[tuple[str, Connection]]:
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=_serve, args=(load, theirs))
    process.start()
    try:
        yield str(ours.recv()), ours
    finally:
        ours.send("end")
        process.join()


def _serve(load: Load, to: Connection) -> None:
    files, seen = _files(load), Seen()
    faults = Faults(delay=load.delay, rate=load.rate)
    with fake_hub.serve(REPO, files, frozenset(files), faults, seen) as (address, _):
        to.send(address)
        while to.recv() == "peak":
            to.send(seen.peak)
