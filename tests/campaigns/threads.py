"""Threads that work for one `with`."""

import threading
from types import TracebackType
from typing import Self


class Threads:
    """A subclass puts its threads into `_threads`. They begin with the `with` and are waited for at
    its end; `_done` is set then."""

    def __init__(self) -> None:
        self._done = threading.Event()
        self._threads = list[threading.Thread]()

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join()
