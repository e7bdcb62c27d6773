"""The fingerprint of a model: SHA-256 over its JSON files, Jinja templates and weights, whatever
the model is called.

Blocks that outlive the process need a fingerprint of all bytes of the weights. Hashing 40 GB takes
half a minute, so the digest of each weight file is noted down, and holds as long as the file's
size, times and inode and samples of it stay the same: `cp -p` over a file keeps its size, inode and
time of change. For blocks in memory, samples of each weight file are enough.
"""

import hashlib
import logging
from pathlib import Path
from typing import Any

from omlx_server.compute.model.notes import Allowed, always, read, write
from omlx_server.compute.weights.files import weight_files

_log = logging.getLogger(__name__)
_SAMPLE_BYTES = 1 << 16
_SAMPLES_PER_FILE = 64
_LONG_BYTES = 4 << 30


def fingerprint(
    path: Path, notes: Path | None = None, *, whole: bool = False, allowed: Allowed = always
) -> str:
    """The fingerprint of a model directory. It covers every byte of the weights if `whole` or if
    there is a file of `notes`, else samples of them. Digests of weight files are read from `notes`;
    new ones are written there if `allowed()` says so at the end. Notes that can't be read or
    written cost time only.

    Raises:
        OSError: a file of the model can't be read.
    """
    digest = hashlib.sha256()
    for file in sorted([*path.glob("*.json"), *path.glob("*.jinja")]):
        digest.update(f"{file.name}\0".encode() + file.read_bytes())
    noted = read(notes) if notes else {}
    known = dict(noted)
    for file in weight_files(path):
        content = _content(file, known) if notes or whole else _samples(file)
        digest.update(f"{file.name}\0{file.stat().st_size}\0{content}\0".encode())
    kept = {name: note for name, note in known.items() if Path(name).exists()}
    if notes and kept != noted and allowed():
        write(notes, kept)
    return digest.hexdigest()


def file_states(path: Path) -> dict[str, list[int]]:
    """Size in bytes, times and inode of each file that the fingerprint of a model covers,
    by its name: they change when a file does. Raises OSError as `fingerprint`."""
    files = [*path.glob("*.json"), *path.glob("*.jinja"), *weight_files(path)]
    return {file.name: _state(file) for file in files}


def together_fingerprint(target: str, drafter: str) -> str:
    """The fingerprint of a model with what drafts for it: blocks hold the caches of both."""
    return hashlib.sha256(f"{target}\0{drafter}".encode()).hexdigest()


def _state(file: Path) -> list[int]:
    stat = file.stat()
    return [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]


def _samples(file: Path) -> str:
    """The digest of 64 samples of 64 KiB, evenly spread from the header to the end of the file.
    They differ between any two trainings of a model."""
    digest, size = hashlib.sha256(), file.stat().st_size
    with file.open("rb") as stream:
        for part in range(_SAMPLES_PER_FILE):
            stream.seek(part * max(0, size - _SAMPLE_BYTES) // (_SAMPLES_PER_FILE - 1))
            digest.update(stream.read(_SAMPLE_BYTES))
    return digest.hexdigest()


def _content(file: Path, known: dict[str, Any]) -> str:
    """The digest of all bytes of a file: from `known`, or else computed and added to `known`."""
    name, state = str(file.resolve()), _state(file)
    signs = {"state": state, "samples": _samples(file)}
    note, size = known.get(name), state[0]
    if (
        isinstance(note, dict)
        and isinstance(note.get("sha256"), str)
        and signs.items() <= note.items()
    ):
        return str(note["sha256"])
    if size > _LONG_BYTES:
        _log.info("reading %s once to know it again (%.0f GB)", file.name, size / 1e9)
    with file.open("rb") as stream:
        content = hashlib.file_digest(stream, "sha256").hexdigest()
    known[name] = {**signs, "sha256": content}
    return content
