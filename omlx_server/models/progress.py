"""The interface for progress of long work on files."""

from typing import Protocol


class ProgressListener(Protocol):
    """An object that gets `done` of `total` bytes or tensors, often, from the working thread."""

    def update(self, stage: str, done: int, total: int) -> None: ...


class Silent:
    def update(self, stage: str, done: int, total: int) -> None:
        pass
