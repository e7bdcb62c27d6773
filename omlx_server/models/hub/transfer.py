"""Fetches one large file over HTTP, and goes on where an earlier try or an earlier process broke
off.

huggingface_hub itself starts a file anew in each process. Blocking; any thread. Two processes that
want the same file come one after the other: each locks the part, and the system releases the lock
of a process that ends.
"""

import errno
import fcntl
import hashlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from huggingface_hub import get_session
from huggingface_hub.errors import HfHubHTTPError, HTTPError
from huggingface_hub.utils import build_hf_headers, hf_raise_for_status

_CHUNK_BYTES = 1 << 18
_HASH_BYTES = 1 << 20
_READ_SECONDS = 30.0
_PARTIAL, _NO_SUCH_RANGE, _SERVER_ERROR = 206, 416, 500
_BUSY = (408, 429)
Report = Callable[[int], None]


def transfer(
    url: str, part: Path, target: Path, nbytes: int, pauses: Sequence[float], report: Report
) -> None:
    """Make `target` a file of `nbytes` bytes, through `part` on the same disk. `report` is told how
    many bytes of it are here. A transfer that breaks off is tried again after each of the `pauses`
    (seconds), and from the first pause on whenever bytes have come.

    Raises:
        HTTPError: the network or the server failed.
        OSError: the disk failed, or the server sent another number of bytes.
    """
    part.parent.mkdir(parents=True, exist_ok=True)
    with _locked(part) as file:
        if bytes_in(target) == nbytes:
            part.unlink(missing_ok=True)
        else:
            _fill(url, file, nbytes, pauses, report)
            os.fsync(file.fileno())
            target.parent.mkdir(parents=True, exist_ok=True)
            part.replace(target)
    report(nbytes)


def bytes_in(path: Path) -> int:
    """The size of a file in bytes; 0 where there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def sha256_of(path: Path, report: Report) -> str:
    """The sha256 of a file in hex digits. `report` is told how many bytes have been read."""
    digest, done = hashlib.sha256(), 0
    with path.open("rb") as file:
        while chunk := file.read(_HASH_BYTES):
            digest.update(chunk)
            done += len(chunk)
            report(done)
    return digest.hexdigest()


@contextmanager
def _locked(part: Path) -> Iterator[BinaryIO]:
    """The part, open at its end, and nobody else's. Whoever had it before may have renamed it."""
    while True:
        with part.open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if _is_named(file, part):
                yield file
                return


def _is_named(file: BinaryIO, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _fill(url: str, file: BinaryIO, nbytes: int, pauses: Sequence[float], report: Report) -> None:
    left, most = list(pauses), file.tell()
    while file.tell() != nbytes:
        try:
            _stream(url, file, nbytes, report)
            problem: HTTPError | None = None
        except HTTPError as error:
            if not _may_pass(error):
                raise
            problem = error
        if file.tell() > nbytes:
            raise OSError(errno.EBADMSG, "the server sends more than the hub has listed")
        if file.tell() > most:
            left, most = list(pauses), file.tell()
        elif not left:
            raise problem or ConnectionError("the server sends less than the hub has listed")
        else:
            time.sleep(left.pop(0))


def _stream(url: str, file: BinaryIO, nbytes: int, report: Report) -> None:
    """What is missing of the file, or as much of it as comes."""
    if file.tell() > nbytes:
        file.truncate(0)
        file.seek(0)
    headers = {**build_hf_headers(), "Accept-Encoding": "identity"}
    if file.tell():
        headers["Range"] = f"bytes={file.tell()}-"
    with get_session().stream("GET", url, headers=headers, timeout=_READ_SECONDS) as response:
        if response.status_code == _NO_SUCH_RANGE or (
            file.tell() and response.status_code != _PARTIAL and response.is_success
        ):
            # The server has another file, or gives whole ones only.
            file.truncate(0)
            file.seek(0)
        if response.status_code == _NO_SUCH_RANGE:
            return
        hf_raise_for_status(response)
        report(file.tell())
        for chunk in response.iter_raw(_CHUNK_BYTES):
            file.write(chunk)
            report(file.tell())
            if file.tell() > nbytes:
                break
    file.flush()


def _may_pass(error: HTTPError) -> bool:
    """Whether to ask again makes sense."""
    if not isinstance(error, HfHubHTTPError):
        return True
    status = error.response.status_code
    return status >= _SERVER_ERROR or status in _BUSY
