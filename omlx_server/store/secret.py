"""The key of all digests of a directory: a file of 32 random bytes."""

import errno
import hashlib
import secrets
import stat
from pathlib import Path

from omlx_server.store.mediums.disk import (
    READ_ONLY,
    READ_REASONS,
    WRITE_REASONS,
    FileOperations,
    as_medium_errors,
    make_directory,
)
from omlx_server.store.mediums.medium import Name

SECRET = "secret"
SECRET_BYTES = 32


def load_secret(root: Path, operations: FileOperations | None = None) -> bytes:
    """Return a directory's key; make it if missing or damaged, under a lock. Raises MediumError."""
    operations = operations or FileOperations()
    path = root.absolute() / SECRET
    with as_medium_errors(WRITE_REASONS):
        make_directory(operations, path.parent)
        try:
            fd = operations.open_shared(path)
        except OSError as error:
            if error.errno not in READ_ONLY:
                raise
            fd = operations.open_read(path)
        try:
            operations.lock(fd, wait=True)
            return _read_or_make_secret(operations, fd)
        finally:
            operations.close(fd)


def read_secret(root: Path, operations: FileOperations | None = None) -> bytes | None:
    """Return the key; None if missing or damaged."""
    operations = operations or FileOperations()
    with as_medium_errors(READ_REASONS):
        try:
            fd = operations.open_read(root.absolute() / SECRET)
        except FileNotFoundError:
            return None
        try:
            return _read_valid_secret(operations, fd)
        finally:
            operations.close(fd)


def name_in_shared_store(name: Name, secret: bytes) -> Name:
    """Return a block's name in a store whose other servers have other secrets."""
    digest = hashlib.blake2b(name.namespace.encode(), key=secret, digest_size=8)
    return Name(digest.hexdigest(), name.key)


def _read_valid_secret(operations: FileOperations, fd: int) -> bytes | None:
    content = operations.read(fd, SECRET_BYTES + 1)
    is_valid = len(content) == SECRET_BYTES and any(content)  # a power cut leaves zeros
    return content if is_valid else None


def _read_or_make_secret(operations: FileOperations, fd: int) -> bytes:
    if not stat.S_ISREG(operations.stat_open(fd).st_mode):
        raise OSError(errno.EIO, "the secret is not a regular file")
    content = _read_valid_secret(operations, fd)
    if content is not None:
        return content
    new = secrets.token_bytes(SECRET_BYTES)
    operations.truncate(fd, 0)
    if operations.write_at(fd, new, 0) != SECRET_BYTES:
        raise OSError(errno.EIO, "the secret could not be written")
    operations.sync(fd)  # without the secret all blocks are lost
    return new
