"""The key of all digests of a directory: a file of 32 random bytes beside the blocks."""

import errno
import hashlib
import secrets
import stat
from pathlib import Path

from omlx_server.store.mediums.medium import Name
from omlx_server.store.mediums.operations import (
    READ_ONLY,
    READING,
    WRITING,
    FileOperations,
    make_directory,
    raising,
)

SECRET = "secret"
SECRET_BYTES = 32


def secret(root: Path, operations: FileOperations | None = None) -> bytes:
    """The key of the digests of one directory, made when it is missing or damaged.

    The file is locked while it is read or made, so that two processes at once agree. Raises
    MediumError.
    """
    operations = operations or FileOperations()
    path = root.absolute() / SECRET
    with raising(WRITING):
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
    """The key as `secret` gives it, but none is made: None when it is missing or damaged."""
    operations = operations or FileOperations()
    with raising(READING):
        try:
            fd = operations.open_read(root.absolute() / SECRET)
        except FileNotFoundError:
            return None
        try:
            return _whole_secret(operations, fd)
        finally:
            operations.close(fd)


def own_name(name: Name, secret: bytes) -> Name:
    """The name of a block in a store that servers with other secrets share. The secret is part of
    it, because these servers could not use each other's blocks, and would write over them."""
    digest = hashlib.blake2b(name.namespace.encode(), key=secret, digest_size=8)
    return Name(digest.hexdigest(), name.key)


def _whole_secret(operations: FileOperations, fd: int) -> bytes | None:
    found = operations.read(fd, SECRET_BYTES + 1)
    whole = len(found) == SECRET_BYTES and any(found)  # zeros are what a power cut leaves
    return found if whole else None


def _read_or_make_secret(operations: FileOperations, fd: int) -> bytes:
    if not stat.S_ISREG(operations.stat_open(fd).st_mode):
        raise OSError(errno.EIO, "the secret is not a regular file")
    found = _whole_secret(operations, fd)
    if found is not None:
        return found
    made = secrets.token_bytes(SECRET_BYTES)
    operations.truncate(fd, 0)
    if operations.write_at(fd, made, 0) != SECRET_BYTES:
        raise OSError(errno.EIO, "the secret could not be written")
    operations.sync(fd)  # without it, all that is stored is lost
    return made
