"""What happens to a directory of blocks while a server works with it. Each fault lasts for one
`with` and is healed at its end. Nothing is simulated: rights, mounts, limits and files are real.
"""

import ctypes
import os
import random
import resource
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

_TICK_SECONDS = 0.03
_HARMED_AT_ONCE = 0.05  # of all files, each tick
_FILE_LIMIT = 16 << 10  # fewer bytes than a block has, more than a log has before damage begins
_LARGEST = 32 << 20
_PR_CAPBSET_DROP = 24
_CAP_DAC_OVERRIDE = 1

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a server (`pid`) keeps its blocks. `disk` is a small file system that they have for
    themselves, None where nobody may mount one."""

    kv: Path
    pid: int
    disk: Path | None
    rng: random.Random = field(default_factory=lambda: random.Random(1))

    def blocks(self) -> list[Path]:
        """What is there under the name of a block, whatever it is."""
        found: list[Path] = []
        for directory, folders, files in os.walk(self.kv):
            found += [Path(directory, name) for name in files + folders if _is_block(name)]
        return sorted(found)


@dataclass(frozen=True, slots=True)
class Fault:
    """`counters`: at least one of them goes up. `why_not` says why it can't be had at a place."""

    name: str
    counters: tuple[str, ...]
    lasting: Callable[[Place], AbstractContextManager[None]]
    why_not: Callable[[Place], str] = lambda place: ""


# -- the places ----------------------------------------------------------------------------


@contextmanager
def small_disk(where: Path, nbytes: int) -> Iterator[Path | None]:
    """A file system of its own at `where`, which is made; None where nobody may mount one."""
    where.mkdir(parents=True)
    if not _mount("-t", "tmpfs", "-o", f"size={nbytes}", "tmpfs", str(where)):
        yield None
        return
    try:
        yield where
    finally:
        subprocess.run(["umount", "--lazy", str(where)], check=True)


def without_override(start: Callable[[], T]) -> T:
    """Call `start`; what it starts may not pass by the rights of files, even if we are root.

    The right is lost by a thread, and by the processes that this thread starts."""

    def drop_and_start() -> T:
        if sys.platform == "linux" and os.geteuid() == 0:
            ctypes.CDLL(None).prctl(_PR_CAPBSET_DROP, _CAP_DAC_OVERRIDE, 0, 0, 0)
        return start()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(drop_and_start).result()


# -- the directory -------------------------------------------------------------------------


@contextmanager
def _read_only_by_rights(place: Place) -> Iterator[None]:
    _set_rights(place.kv, 0o500)
    try:
        yield
    finally:
        _set_rights(place.kv, 0o700)


def _set_rights(root: Path, mode: int) -> None:
    """Of all directories, from above, so that no new one comes meanwhile."""
    root.chmod(mode)
    for directory, folders, _ in os.walk(root):
        for name in folders:
            Path(directory, name).chmod(mode)


def _passes_by_rights(place: Place) -> str:
    if sys.platform != "linux":
        return "the server is root" if os.geteuid() == 0 else ""
    status = Path(f"/proc/{place.pid}/status").read_text(encoding="ascii")
    effective = next(line for line in status.splitlines() if line.startswith("CapEff:"))
    may = int(effective.split()[1], 16) & 1 << _CAP_DAC_OVERRIDE
    return "the server passes by the rights of files" if may else ""


@contextmanager
def _read_only_by_mount(place: Place) -> Iterator[None]:
    """Mounted over itself: the first mount has files open for writing and can't be changed. Made
    read-only under another name first: in its place the server would write to it before that."""
    kv = str(place.kv)
    other = str(place.kv.with_name("read-only"))
    Path(other).mkdir()
    assert _mount("--bind", kv, other)
    try:
        assert _mount("-o", "remount,bind,ro", other)
        assert _mount("--bind", other, kv)
    finally:
        subprocess.run(["umount", "--lazy", other], check=True)
        Path(other).rmdir()
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", kv], check=True)


@contextmanager
def _full(place: Place) -> Iterator[None]:
    """Not a byte is free. What the server deletes is taken at once."""
    assert place.disk is not None
    filler = place.disk / "filler"
    with filler.open("wb", buffering=0) as file:

        def fill() -> None:
            for size in (1 << 16, 1 << 12):
                with suppress(OSError):
                    while file.write(bytes(size)):
                        pass

        try:
            with _again_and_again(fill):
                yield
        finally:
            filler.unlink()


def _no_disk(place: Place) -> str:
    return "" if place.disk else "nobody may mount a file system here"


@contextmanager
def _small_files_only(place: Place) -> Iterator[None]:
    """The system takes the first bytes of a block and no more."""
    assert sys.platform == "linux"
    before = resource.prlimit(place.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(place.pid, resource.RLIMIT_FSIZE, (_FILE_LIMIT, before[1]))
    try:
        yield
    finally:
        resource.prlimit(place.pid, resource.RLIMIT_FSIZE, before)


def _no_limits(place: Place) -> str:
    return "" if sys.platform == "linux" else "only Linux limits other processes"


@contextmanager
def _deleted(place: Place) -> Iterator[None]:
    _remove(place.kv)
    yield


@contextmanager
def _a_file_in_its_place(place: Place) -> Iterator[None]:
    """Until it is a file: between the two calls the server may have made its directory anew."""
    aside = place.kv.with_name("aside")
    while not place.kv.is_file():
        with suppress(FileNotFoundError):
            place.kv.rename(aside)
        with suppress(FileExistsError):
            place.kv.touch(exist_ok=False)
        _remove(aside)
    try:
        yield
    finally:
        place.kv.unlink()


def _remove(directory: Path) -> None:
    """Somebody may be writing there."""
    while directory.exists():
        shutil.rmtree(directory, ignore_errors=True)


# -- files -------------------------------------------------------------------------------

Harm = Callable[[Path, Path, random.Random], None]


def _swap(path: Path, other: Path, rng: random.Random) -> None:
    aside = path.with_name("aside")
    path.rename(aside)
    other.rename(path)
    aside.rename(other)


def _flip(path: Path, other: Path, rng: random.Random) -> None:
    """Bits anywhere in the second half, which is data: only the digest tells."""
    with path.open("r+b") as file:
        data = bytearray(file.read())
        for _ in range(len(data) // 64):
            data[rng.randrange(len(data) // 2, len(data))] ^= 1 << rng.randrange(8)
        file.seek(0)
        file.write(data)


def _truncate(path: Path, other: Path, rng: random.Random) -> None:
    os.truncate(path, rng.randrange(path.stat().st_size))


def _zero(path: Path, other: Path, rng: random.Random) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def _fifo(path: Path, other: Path, rng: random.Random) -> None:
    path.unlink()
    os.mkfifo(path)


def _link(path: Path, other: Path, rng: random.Random) -> None:
    """To the very block, which is elsewhere now: who follows it finds nothing wrong."""
    elsewhere = path.parents[4] / "elsewhere"
    elsewhere.mkdir(exist_ok=True)
    moved = shutil.move(path, elsewhere / path.name)
    path.symlink_to(moved)


def _folder(path: Path, other: Path, rng: random.Random) -> None:
    path.unlink()
    path.mkdir()


def _huge(path: Path, other: Path, rng: random.Random) -> None:
    os.truncate(path, 1 << 40)


def _longer(path: Path, other: Path, rng: random.Random) -> None:
    """All is right up to the end, which is not where it should be."""
    os.truncate(path, 64 << 20)


def _harming(harm: Harm) -> Callable[[Place], AbstractContextManager[None]]:
    """A fault that does this to some files at a time, until it ends."""

    @contextmanager
    def lasting(place: Place) -> Iterator[None]:
        def some() -> None:
            blocks = [path for path in place.blocks() if path.is_file() and not path.is_symlink()]
            for _ in range(max(2, int(_HARMED_AT_ONCE * len(blocks)))):
                if len(blocks) > 1:
                    with suppress(OSError, ValueError):  # it is gone meanwhile, or empty
                        path, other = place.rng.sample(blocks, 2)
                        harm(path, other, place.rng)

        with _again_and_again(some):
            yield
        for path in place.blocks():
            _heal(path)

    return lasting


def _heal(path: Path) -> None:
    """Remove what would be counted under the next fault as well, or fills a disk in name."""
    with suppress(OSError):
        found = path.lstat()
        if stat.S_ISDIR(found.st_mode):
            path.rmdir()
        elif not stat.S_ISREG(found.st_mode) or found.st_size > _LARGEST:
            path.unlink()


def _is_block(name: str) -> bool:
    return name.endswith(".safetensors")


@contextmanager
def _again_and_again(act: Callable[[], None]) -> Iterator[None]:
    done = threading.Event()

    def loop() -> None:
        act()
        while not done.wait(_TICK_SECONDS):
            act()

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _mount(*words: str) -> bool:
    """False if that is not possible."""
    try:
        done = subprocess.run(["mount", *words], capture_output=True, check=False)
    except FileNotFoundError:
        return False
    return done.returncode == 0


# -- all of them ---------------------------------------------------------------------------


def _dropped(*reasons: str) -> tuple[str, ...]:
    return tuple(f'omlx_cache_dropped_total{{reason="{reason}"}}' for reason in reasons)


def _failed(*reasons: str) -> tuple[str, ...]:
    return tuple(f'omlx_cache_read_failures_total{{reason="{reason}"}}' for reason in reasons)


FAULTS = (
    Fault("small files only", _dropped("io"), _small_files_only, _no_limits),
    Fault("read-only by rights", _dropped("read-only"), _read_only_by_rights, _passes_by_rights),
    Fault("read-only by mount", _dropped("read-only"), _read_only_by_mount, _no_disk),
    Fault("full", _dropped("full"), _full, _no_disk),
    Fault("deleted", _failed("gone"), _deleted),
    Fault("a file in its place", _dropped("io"), _a_file_in_its_place),
    Fault("files swapped", _failed("key"), _harming(_swap)),
    Fault("bits flipped", _failed("digest"), _harming(_flip)),
    Fault("files truncated", _failed("truncated", "digest"), _harming(_truncate)),
    Fault("files zeroed", _failed("header"), _harming(_zero)),
    Fault("FIFOs", _failed("io"), _harming(_fifo)),
    Fault("links", _failed("io"), _harming(_link)),
    Fault("folders", _failed("io"), _harming(_folder)),
    Fault("huge files", _failed("too-large"), _harming(_huge)),
    Fault("longer files", _failed("digest"), _harming(_longer)),
)
"""The limit of sizes comes first: damage fills the log, which is a file as well."""
