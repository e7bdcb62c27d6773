"""What tells two models apart, whatever they are called: SHA-256 over config, tokenizer, weights.

Blocks that outlive the process need all of the weights in it. Hashing 40 GB takes half a minute, so
the digest of a file is noted down, and holds as long as its size, time and inode stay the same. For
blocks in memory alone, samples of each file will do.
"""

import hashlib
import logging
from pathlib import Path
from typing import Any

from omlx_server.compute.model.notes import Allowed, always, read, write

_log = logging.getLogger(__name__)
_SAMPLE_BYTES = 1 << 16
_SAMPLES_PER_FILE = 64
_LONG_BYTES = 4 << 30


def fingerprint(
    path: Path, notes: Path | None = None, *, whole: bool = False, allowed: Allowed = always
) -> str:
    """The fingerprint of a model directory. `notes` is where digests of weight files are kept, if
    that is `allowed` when they are known; with it, or if `whole`, every byte of them counts.

    Raises:
        OSError: the directory can't be read. Notes that can't are made anew, or done without.
    """
    digest = hashlib.sha256()
    for file in sorted([*path.glob("*.json"), *path.glob("*.jinja")]):
        digest.update(f"{file.name}\0".encode() + file.read_bytes())
    noted = read(notes) if notes else {}
    known = dict(noted)
    for file in sorted(path.glob("*.safetensors")):
        content = _content(file, known) if notes or whole else _samples(file)
        digest.update(f"{file.name}\0{file.stat().st_size}\0{content}\0".encode())
    kept = {name: note for name, note in known.items() if Path(name).exists()}
    if notes and kept != noted and allowed():
        write(notes, kept)
    return digest.hexdigest()


def _samples(file: Path) -> str:
    """64 KiB at 64 even places, header included: they tell any two trainings of a model apart."""
    digest, size = hashlib.sha256(), file.stat().st_size
    with file.open("rb") as stream:
        for part in range(_SAMPLES_PER_FILE):
            stream.seek(part * max(0, size - _SAMPLE_BYTES) // (_SAMPLES_PER_FILE - 1))
            digest.update(stream.read(_SAMPLE_BYTES))
    return digest.hexdigest()


def _content(file: Path, known: dict[str, Any]) -> str:
    """All of a file, or what is noted of it."""
    stat = file.stat()
    state = [stat.st_size, stat.st_mtime_ns, stat.st_ino]
    name = str(file.resolve())
    note = known.get(name)
    if (
        isinstance(note, dict)
        and note.get("state") == state
        and isinstance(note.get("sha256"), str)
    ):
        return str(note["sha256"])
    if stat.st_size > _LONG_BYTES:
        _log.info("reading %s once to know it again (%.0f GB)", file.name, stat.st_size / 1e9)
    with file.open("rb") as stream:
        content = hashlib.file_digest(stream, "sha256").hexdigest()
    known[name] = {"state": state, "sha256": content}
    return content
