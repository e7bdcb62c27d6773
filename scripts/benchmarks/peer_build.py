"""A program of a peer, built from the source archive of a package. Leaves the program alone."""

import os
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from scripts.benchmarks.peer_command import Tell, run
from scripts.benchmarks.peer_pins import Build, Pins


def build(pins: Pins, wanted: Build, home: Path, tell: Tell) -> None:
    """Put the program into `home`/bin, where CMake and Ninja are. Raises OmlxError."""
    with tempfile.TemporaryDirectory(dir=home) as folder:
        work = Path(folder)
        _fetch(pins, work, tell)
        _extract(next(work.glob("*.tar.gz")), wanted.folder, work / "source")
        tools = (home / "bin").absolute()
        configure = ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={tools / 'ninja'}", *wanted.options]
        places = ["-S", str(work / "source"), "-B", str(work / "build")]
        run(pins, [str(tools / "cmake"), *places, *configure], tell)
        make = ["--build", str(work / "build"), "--target", wanted.program]
        run(pins, [str(tools / "cmake"), *make, "--parallel", str(os.cpu_count() or 1)], tell)
        shutil.copy(work / "build" / "bin" / wanted.program, home / "bin")


def _fetch(pins: Pins, into: Path, tell: Tell) -> None:
    pip = [sys.executable, "-m", "pip", "download", "--no-input", "--disable-pip-version-check"]
    pip += ["--progress-bar", "off", "--no-deps", "--no-binary", pins.package, "--dest", str(into)]
    run(pins, [*pip, f"{pins.package}=={pins.release}"], tell)


def _extract(archive: Path, folder: str, into: Path) -> None:
    """What is below `folder` of the archive's one top directory."""
    with tarfile.open(archive) as tar:
        if hasattr(tarfile, "data_filter"):  # not in Python 3.11 before 3.11.4
            tar.extractall(into, members=_below(tar, folder), filter="data")
        else:
            tar.extractall(into, members=_below(tar, folder))


def _below(tar: tarfile.TarFile, folder: str) -> Iterator[tarfile.TarInfo]:
    for member in tar:
        path = PurePosixPath(member.name)
        inside = PurePosixPath(*path.parts[1:])
        if member.isfile() and inside.is_relative_to(folder):
            member.name = str(inside.relative_to(folder))
            yield member
