"""Writes a file whole or not at all. Blocking."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

PRIVATE_FILE = 0o600
PRIVATE_DIRECTORY = 0o700
OTHERS = 0o077
"""The bits of a mode that give rights to others than the owner; private files have none."""


@contextmanager
def replacing(path: Path, mode: int) -> Iterator[BinaryIO]:
    """Yield a new file that replaces `path` at the end, unless that fails. Raises OSError."""
    fd, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(fd, "wb") as file:
            yield file
            file.flush()
            if mode != PRIVATE_FILE:  # mkstemp's own; some file systems have no modes
                os.fchmod(fd, mode)
            if os.geteuid() == 0:  # a file that root changes stays its owner's
                with suppress(FileNotFoundError):
                    os.fchown(fd, path.stat().st_uid, path.stat().st_gid)
            os.fsync(fd)
        Path(temporary).replace(path)
    finally:
        Path(temporary).unlink(missing_ok=True)
