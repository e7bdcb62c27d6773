"""Fetches large files over HTTP, in ranges over several connections, and resumes them.

Servers that allow fewer connections, or send whole files only, are followed.
"""

import errno
import re
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Condition, Thread
from typing import Any

from huggingface_hub import get_session
from huggingface_hub.errors import HfHubHTTPError, HTTPError
from huggingface_hub.utils import build_hf_headers, hf_raise_for_status

from omlx_server.core.crash import Crash, guarded
from omlx_server.models.hub.part import PartFile, Range, TransferStopped, bytes_here, has_size

CONNECTIONS = 16
"""The most connections of one transfer. Each holds `_CHUNK_BYTES` of memory, and a few buffers."""
_CHUNK_BYTES = 1 << 18
# Ranges for each connection, within the bounds of their sizes: few requests, and a short rest for
# the slowest connection.
_RANGES_EACH = 8
_LEAST_RANGE, _MOST_RANGE = 1 << 20, 1 << 27
_READ_SECONDS = 30.0
_TELL_SECONDS = 0.1
_STOP_SECONDS = 1.0
_LONGEST_PAUSE = 60.0
_OK, _PARTIAL, _NO_SUCH_RANGE, _SERVER_ERROR = 200, 206, 416, 500
_BUSY = (408, 429)
_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")
Report = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class FileTransfer:
    """A file of `nbytes` that is to become `target`, through `part` on the same disk."""

    url: str
    part: Path
    target: Path
    nbytes: int


def transfer(files: Sequence[FileTransfer], pauses: Sequence[float], report: Report) -> int:
    """Fetch all files; return the bytes that came. `report`, on the caller's thread, gets the
    bytes that are here and may raise to end it. Retries after each of the `pauses` (seconds).
    Raises HTTPError if network or server failed, OSError if the disk failed or the size is
    wrong."""
    return _Transfer(files, pauses).run(report)


class _WholeOnly(Exception):
    pass


class _NoProgress(Exception):
    """A range got no bytes after all pauses, but `came` bytes before."""

    def __init__(self, cause: Exception, came: int) -> None:
        self.cause, self.came = cause, came


@dataclass(slots=True, eq=False)
class _Opened:
    part: PartFile
    file: FileTransfer
    waiting: deque[Range]
    fetching: int = 0


class _Transfer:
    """Threads that fetch the ranges of several files. `_changed` guards their shared state."""

    def __init__(self, files: Sequence[FileTransfer], pauses: Sequence[float]) -> None:
        total = sum(file.nbytes for file in files)
        size = max(_LEAST_RANGE, min(total // (_RANGES_EACH * CONNECTIONS), _MOST_RANGE))
        self._range_bytes = size
        self._most = min(CONNECTIONS, sum(-(-file.nbytes // size) for file in files) or 1)
        self._pauses = pauses
        self._changed = Condition()
        self._unopened = deque((file, bytes_here(file.part, file.nbytes)) for file in files)
        self._opening = 0
        self._opened = list[_Opened]()
        self._here = sum(here for _, here in self._unopened)
        self._came = 0
        self._threads_left = self._most
        self._sockets = list[socket.socket]()
        self._is_stopped = False
        self._problem: Exception | None = None

    @property
    def _is_done(self) -> bool:
        return self._is_stopped or not (self._unopened or self._opening or self._opened)

    def run(self, report: Report) -> int:
        # A thread that waits for a server must not keep a program from ending.
        threads = [Thread(target=self._fetch_all, daemon=True) for _ in range(self._most)]
        try:
            for thread in threads:
                thread.start()
            while not self._is_done:
                report(self._here)
                with self._changed:
                    self._changed.wait_for(lambda: self._is_done, _TELL_SECONDS)
        finally:
            self._stop()
            latest = time.monotonic() + _STOP_SECONDS
            for thread in threads:
                thread.join(max(latest - time.monotonic(), 0.0))
        if self._problem is not None:
            raise self._problem
        report(self._here)
        return self._came

    def _stop(self, problem: Exception | None = None) -> None:
        """Stop, for the first `problem` if any. Later writes raise TransferStopped."""
        with self._changed:
            self._problem = self._problem or problem
            self._is_stopped = True
            closing, self._opened = self._opened, []
            self._changed.notify_all()
            for line in self._sockets:
                with suppress(OSError):
                    # SSLSocket's own shutdown would interfere with the reading thread.
                    socket.socket.shutdown(line, socket.SHUT_RDWR)
        for opened in closing:
            opened.part.close()

    # -- In the threads ------------------------------------------------------------------

    def _fetch_all(self) -> None:
        ended = guarded(self._fetch_ranges)
        if isinstance(ended, Crash) and not isinstance(ended.error, TransferStopped):
            self._stop(ended.error)

    def _fetch_ranges(self) -> None:
        is_let_in = True
        while is_let_in and (taken := self._take()) is not None:
            opened, part_range = taken
            is_let_in = self._fetch_one(opened, part_range)
            self._give_back(opened, part_range)

    def _take(self) -> tuple[_Opened, Range] | None:
        def waiting() -> _Opened | None:
            return next((opened for opened in self._opened if opened.waiting), None)

        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_done or self._unopened or waiting())
                if self._is_done:
                    return None
                if opened := waiting():
                    opened.fetching += 1
                    return opened, opened.waiting.popleft()
                file, counted = self._unopened.popleft()
                self._opening += 1
            self._open(file, counted)

    def _open(self, file: FileTransfer, counted: int) -> None:
        part = PartFile(file.part, file.nbytes, self._range_bytes, self._wait)
        is_there = has_size(file.target, file.nbytes)  # another process was first
        here = file.nbytes if is_there else part.here
        waiting = deque(each for each in part.ranges if not each.is_done)
        if is_there:
            part.remove()
        elif not waiting:
            part.move_to(file.target)
        with self._changed:
            self._here += here - counted
            self._opening -= 1
            if self._is_stopped:
                part.close()
                raise TransferStopped
            if not is_there and waiting:
                self._opened.append(_Opened(part, file, waiting))
            self._changed.notify_all()

    def _fetch_one(self, opened: _Opened, part_range: Range) -> bool:
        """Return False if the server answers other threads only."""
        try:
            self._fetch(opened, part_range)
        except _WholeOnly:
            self._join_ranges(opened)
        except TransferStopped:
            if self._is_stopped:
                raise
        except _NoProgress as error:
            with self._changed:
                self._threads_left -= 1
                if self._came == error.came or not self._threads_left:
                    raise error.cause from None
            return False
        return True

    def _give_back(self, opened: _Opened, part_range: Range) -> None:
        with self._changed:
            opened.fetching -= 1
            index = part_range.index
            is_current = opened.part.ranges[index : index + 1] == [part_range]
            if is_current and not part_range.is_done:
                opened.waiting.append(part_range)
            is_whole = not (opened.waiting or opened.fetching)
            self._changed.notify_all()
        if is_whole:
            opened.part.move_to(opened.file.target)
            with self._changed:
                self._opened.remove(opened)
                self._changed.notify_all()

    def _join_ranges(self, opened: _Opened) -> None:
        with self._changed:
            if (joined := opened.part.join_ranges()) is not None:
                whole, lost = joined
                opened.waiting = deque([whole])
                self._here -= lost

    def _fetch(self, opened: _Opened, part_range: Range) -> None:
        left, most, came = list(self._pauses), part_range.done, self._came
        while True:
            problem: Exception = ConnectionError("the server sends less than the hub has listed")
            try:
                self._stream(opened, part_range)
            except HTTPError as error:
                if not _may_pass(error):
                    raise
                problem = error
            if part_range.is_done:
                return
            if part_range.done > most:
                left, most, came = list(self._pauses), part_range.done, self._came
                self._wait(0.0)
            elif not left:
                raise _NoProgress(problem, came)
            else:
                self._wait(max(left.pop(0), _asked_pause(problem)))

    def _stream(self, opened: _Opened, part_range: Range) -> None:
        is_whole = part_range.length == opened.file.nbytes
        headers = {**build_hf_headers(), "Accept-Encoding": "identity"}
        if part_range.done or not is_whole:
            headers["Range"] = (
                f"bytes={part_range.position}-{part_range.start + part_range.length - 1}"
            )
        with get_session().stream(
            "GET", opened.file.url, headers=headers, timeout=_READ_SECONDS
        ) as response:
            if response.status_code == _NO_SUCH_RANGE:
                raise OSError(errno.EBADMSG, "the server has less than the hub has listed")
            hf_raise_for_status(response)
            if response.status_code != _PARTIAL and not is_whole:
                raise _WholeOnly
            if response.status_code == _PARTIAL:
                _check_range(response, part_range, opened.file.nbytes)
            elif part_range.done:
                self._count(-part_range.done)
                opened.part.empty(part_range)
            with self._waiting_on(response):
                for chunk in response.iter_raw(_CHUNK_BYTES):
                    opened.part.write(part_range, chunk)
                    self._count(len(chunk))

    @contextmanager
    def _waiting_on(self, response: Any) -> Iterator[None]:
        stream = response.extensions.get("network_stream")
        line = stream.get_extra_info("socket") if stream is not None else None
        if line is None:
            yield
            return
        with self._changed:
            if self._is_stopped:
                raise TransferStopped
            self._sockets.append(line)
        try:
            yield
        finally:
            with self._changed:
                self._sockets.remove(line)

    def _count(self, nbytes: int) -> None:
        with self._changed:
            self._here += nbytes
            self._came += max(nbytes, 0)

    def _wait(self, seconds: float) -> None:
        with self._changed:
            if self._changed.wait_for(lambda: self._is_stopped, seconds):
                raise TransferStopped


def _check_range(response: Any, part_range: Range, nbytes: int) -> None:
    answer = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
    if answer is None:
        raise OSError(errno.EBADMSG, "the server does not say which range it sends")
    if answer[2] != "*" and int(answer[2]) != nbytes:
        more = "more" if int(answer[2]) > nbytes else "less"
        raise OSError(errno.EBADMSG, f"the server has {more} than the hub has listed")
    if int(answer[1]) != part_range.position:
        raise OSError(errno.EBADMSG, "the server sends another range than was asked for")


def _may_pass(error: HTTPError) -> bool:
    if not isinstance(error, HfHubHTTPError):
        return True
    status = error.response.status_code
    return status >= _SERVER_ERROR or status in _BUSY


def _asked_pause(problem: Exception) -> float:
    if not isinstance(problem, HfHubHTTPError):
        return 0.0
    seconds = problem.response.headers.get("Retry-After", "")
    return min(float(seconds), _LONGEST_PAUSE) if seconds.isdigit() else 0.0
