"""The fingerprint of a model, SHA-256 over its JSON files, Jinja templates and weights, and that of
the system which computes it. Any thread.

Blocks on disk need one of all weight bytes. A file's digest is noted, and holds while its size,
times, inode and samples stay. Samples are enough for blocks in memory.
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
from omlx_server.compute.weights.files import weight_files

_log = logging.getLogger(__name__)
_SAMPLE_BYTES = 1 << 16
_SAMPLES_PER_FILE = 64
_LONG_BYTES = 4 << 30
_DIGITS = 12


def fingerprint(
    path: Path, notes: Path | None = None, *, whole: bool = False, allowed: Allowed = always
) -> str:
    """Return a model directory's fingerprint: of every byte if `whole` or with a file of
    `notes`, else of samples. New digests are noted if `allowed()`. Raises OSError."""
    digest = hashlib.sha256()
    for file in sorted([*path.glob("*.json"), *path.glob("*.jinja")]):
        digest.update(f"{file.name}\0".encode() + file.read_bytes())
    noted = read(notes) if notes else {}
    notes_now = dict(noted)
    for file in weight_files(path):
        content = _content(file, notes_now) if notes or whole else _samples(file)
        digest.update(f"{file.name}\0{file.stat().st_size}\0{content}\0".encode())
    present = {name: note for name, note in notes_now.items() if Path(name).exists()}
    if notes and present != noted and allowed():
        write(notes, present)
    return digest.hexdigest()


def file_states(path: Path) -> dict[str, list[int]]:
    """Return size, times and inode of each file of the fingerprint. Raises OSError."""
    files = [*path.glob("*.json"), *path.glob("*.jinja"), *weight_files(path)]
    return {file.name: _state(file) for file in files}


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


def _state(file: Path) -> list[int]:
    stat = file.stat()
    return [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]


def _samples(file: Path) -> str:
    digest, size = hashlib.sha256(), file.stat().st_size
    with file.open("rb") as stream:
        for part in range(_SAMPLES_PER_FILE):
            stream.seek(part * max(0, size - _SAMPLE_BYTES) // (_SAMPLES_PER_FILE - 1))
            digest.update(stream.read(_SAMPLE_BYTES))
    return digest.hexdigest()


def _content(file: Path, known: dict[str, Any]) -> str:
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
