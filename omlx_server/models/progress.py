"""How work on files that takes long reports its progress. The caller (the CLI) brings an object
that draws it."""

from typing import Protocol


class ProgressListener(Protocol):
    """An object that is told of progress, often, from the thread that does the work.

    `done` of `total`, in bytes or in tensors; the stages come one after another and do not return.
    """

    def update(self, stage: str, done: int, total: int) -> None: ...


class Silent:
    """A Progress that nobody looks at."""

    def update(self, stage: str, done: int, total: int) -> None:
        pass
