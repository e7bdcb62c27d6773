"""The fingerprint of a model, SHA-256 over its JSON files, Jinja templates and weights, and that of
the system which computes it. Any thread.

Blocks on disk need a fingerprint of every byte. As reading takes long, digests of weight files are
kept in a file of notes, each valid while the file's size, times, inode and samples stay the same.
For blocks in memory a fingerprint of samples is enough.
"""

import hashlib
import logging
from importlib import metadata
from pathlib import Path
from typing import Any

from omlx_server import __version__
from omlx_server.compute.hardware import device
from omlx_server.compute.kv.schemes.base import Scheme
from omlx_server.compute.model.notes import Allowed, always, read, write
from omlx_server.compute.weights.weights import weight_files

_log = logging.getLogger(__name__)
_SAMPLE_BYTES = 1 << 16
_SAMPLES_PER_FILE = 64
_LOGGED_BYTES = 4 << 30  # reading a larger file takes so long that it is logged
_DIGITS = 12


def fingerprint(
    path: Path, notes: Path | None = None, *, whole: bool = False, allowed: Allowed = always
) -> str:
    """Return a model directory's fingerprint: of every byte if `whole` or with a file of
    `notes`, else of samples. New digests are noted if `allowed()`. Raises OSError."""
    digest = hashlib.sha256()
    for file in sorted([*path.glob("*.json"), *path.glob("*.jinja")]):
        digest.update(f"{file.name}\0".encode() + file.read_bytes())
    noted_before = read(notes) if notes else {}
    noted = dict(noted_before)
    for file in weight_files(path):
        weights = _noted_digest(file, noted) if notes or whole else _digest_of_samples(file)
        digest.update(f"{file.name}\0{file.stat().st_size}\0{weights}\0".encode())
    noted = {name: note for name, note in noted.items() if Path(name).exists()}
    if notes and noted != noted_before and allowed():
        write(notes, noted)
    return digest.hexdigest()


def file_states(path: Path) -> dict[str, list[int]]:
    """Return size, times and inode of each file of the fingerprint. Raises OSError."""
    files = [*path.glob("*.json"), *path.glob("*.jinja"), *weight_files(path)]
    return {file.name: _file_state(file) for file in files}


def together_fingerprint(target: str, drafter: str) -> str:
    return hashlib.sha256(f"{target}\0{drafter}".encode()).hexdigest()


def system_fingerprint(path: Path, scheme: Scheme | None) -> str:
    """Return OpenAI's `system_fingerprint`: equal where equal requests are computed alike. Raises
    OSError."""
    parts = [fingerprint(path), scheme.name if scheme else "plain", device.name()]
    parts += [f"omlx_server {__version__}", *libraries()]
    return f"fp_{hashlib.sha256('; '.join(parts).encode()).hexdigest()[:_DIGITS]}"


def libraries() -> list[str]:
    """Return the names and versions of the libraries that compute."""
    return [f"{name} {metadata.version(name)}" for name in ("mlx", "mlx-lm")]


def _noted_digest(file: Path, noted: dict[str, Any]) -> str:
    """Return a file's digest from the notes, if it is unchanged; else read it and note it."""
    name, state = str(file.resolve()), _file_state(file)
    unchanged = {"state": state, "samples": _digest_of_samples(file)}
    note: Any = noted.get(name)
    holds = isinstance(note, dict) and unchanged.items() <= note.items()
    if holds and isinstance(note.get("sha256"), str):
        return str(note["sha256"])
    if state[0] > _LOGGED_BYTES:
        _log.info("reading %s once to know it again (%.0f GB)", file.name, state[0] / 1e9)
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    noted[name] = {**unchanged, "sha256": digest}
    return digest


def _file_state(file: Path) -> list[int]:
    stat = file.stat()
    return [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]


def _digest_of_samples(file: Path) -> str:
    digest, size = hashlib.sha256(), file.stat().st_size
    with file.open("rb") as stream:
        for number in range(_SAMPLES_PER_FILE):
            stream.seek(number * max(0, size - _SAMPLE_BYTES) // (_SAMPLES_PER_FILE - 1))
            digest.update(stream.read(_SAMPLE_BYTES))
    return digest.hexdigest()
