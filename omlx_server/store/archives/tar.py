"""Tar files in one fixed form: a reader knows all bytes but the files' own.

| 512 bytes        | header: name and size of a file                        |
| its size         | the file                                               |
| up to 511 zeros  | padding to whole sectors of 512 bytes                  |
| ...              | the same for every file                                |
| 1024 zeros, more | the end, padded to whole records of 10,240 bytes       |
"""

import tarfile
from collections.abc import Sequence
from typing import BinaryIO

from omlx_server.store.mediums.medium import Buffer, nbytes_of

_SECTOR = tarfile.BLOCKSIZE
_SIZE_FIELD = slice(124, 135)  # the size in a header, in octal digits
_READ_BYTES = 16 << 20  # at a time, so that a false size takes no memory

_COMPRESSION_MAGICS = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\xfd7zXZ": "xz",
    b"BZh": "bzip2",
    b"PK\x03\x04": "zip",
}


class BadArchive(Exception):
    """This is no archive, or a damaged one. The message says why, for people."""


def size_of_tar(sizes: Sequence[int]) -> int:
    nbytes = _bytes_of_members(sizes)
    return nbytes + _end_bytes(nbytes)


def tar_member(name: str, parts: Sequence[Buffer]) -> list[Buffer]:
    nbytes = nbytes_of(parts)
    return [_make_header(name, nbytes), *parts, bytes(_padding_bytes(nbytes))]


def end_of_tar(sizes: Sequence[int]) -> bytes:
    return bytes(_end_bytes(_bytes_of_members(sizes)))


class TarReader:
    """Reads at most `max_bytes` of a tar in this form. Raises BadArchive for anything else."""

    def __init__(self, source: BinaryIO, max_bytes: int) -> None:
        self._source = source
        self._max_bytes = max_bytes
        self._offset = 0

    def read_first(self, name: str, limit: int) -> bytes:
        """Return the first file, of unknown size up to `limit`."""
        header = self._read_up_to(_SECTOR)
        for magic, packer in _COMPRESSION_MAGICS.items():
            if header.startswith(magic):
                raise BadArchive(f"it is compressed ({packer}): unpack it first")
        try:
            size = int(header[_SIZE_FIELD], 8)
            is_ours = header == _make_header(name, size)
        except ValueError:
            is_ours = False
        if not is_ours:
            raise BadArchive("it is not an archive of omlx-server, or its beginning is damaged")
        if size > limit:
            raise BadArchive(f"its {name} has {size} bytes, and at most {limit} are taken")
        return self._read_file(size)

    def read_next(self, name: str, size: int) -> bytes:
        if self._read_exactly(_SECTOR) != _make_header(name, size):
            raise BadArchive(f"{name} is not where it should be")
        return self._read_file(size)

    def require_end(self) -> None:
        self._skip_zeros(_end_bytes(self._offset))
        if self._source.read(1):
            raise BadArchive("something follows behind its end")

    def _read_file(self, size: int) -> bytes:
        data = self._read_exactly(size)
        self._skip_zeros(_padding_bytes(size))
        return data

    def _skip_zeros(self, count: int) -> None:
        if any(self._read_exactly(count)):
            raise BadArchive(f"there is something in its padding, before byte {self._offset}")

    def _read_exactly(self, count: int) -> bytes:
        if self._offset + count > self._max_bytes:
            raise BadArchive(f"it has more than the {self._max_bytes} bytes that are taken")
        data = self._read_up_to(count)
        if len(data) < count:
            raise BadArchive(f"it ends after {self._offset} bytes, before its end")
        return data

    def _read_up_to(self, count: int) -> bytes:
        parts = []
        while count and (part := self._source.read(min(count, _READ_BYTES))):
            parts.append(part)
            self._offset += len(part)
            count -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)


def _make_header(name: str, nbytes: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.mode = nbytes, 0o600
    return info.tobuf(tarfile.USTAR_FORMAT)


def _bytes_of_members(sizes: Sequence[int]) -> int:
    return sum(_SECTOR + nbytes + _padding_bytes(nbytes) for nbytes in sizes)


def _padding_bytes(nbytes: int) -> int:
    return -nbytes % _SECTOR


def _end_bytes(nbytes: int) -> int:
    return 2 * _SECTOR + -(nbytes + 2 * _SECTOR) % tarfile.RECORDSIZE
