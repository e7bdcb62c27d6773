"""Reads experts into the memory of arrays, in threads."""

import os
import weakref
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from omlx_server.core.experts.counts import ExpertCounts
from omlx_server.core.experts.files import StoredTensor

_THREADS = 8
Target = tuple[StoredTensor, memoryview]


class ExpertReader:
    """Keeps the files of one model open."""

    def __init__(self) -> None:
        self.counts = ExpertCounts()
        self._threads = ThreadPoolExecutor(_THREADS, "experts")
        self._files = dict[str, int]()
        weakref.finalize(self, _close, self._threads, self._files)

    def read(self, targets: Sequence[Target]) -> Future[None]:
        """Fill memory with an expert's tensors. The result raises OSError."""
        self.counts.bytes_read += sum(tensor.nbytes for tensor, _ in targets)
        files = [self._file(tensor.file) for tensor, _ in targets]
        return self._threads.submit(_read, files, targets)

    def _file(self, name: str) -> int:
        if name not in self._files:
            self._files[name] = os.open(name, os.O_RDONLY)
        return self._files[name]


def _read(files: Sequence[int], targets: Sequence[Target]) -> None:
    for file, (tensor, memory) in zip(files, targets, strict=True):
        done = 0
        while done < tensor.nbytes:
            count = os.preadv(file, [memory[done:]], tensor.start + done)
            if count == 0:
                raise OSError(f"{Path(tensor.file).name} is cut")
            done += count


def _close(threads: ThreadPoolExecutor, files: dict[str, int]) -> None:
    threads.shutdown(wait=True)
    for file in files.values():
        os.close(file)
