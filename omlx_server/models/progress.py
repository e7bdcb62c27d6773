"""How long work on files reports where it is. Whoever draws it (the CLI) brings the object."""

from typing import Protocol


class Progress(Protocol):
    """Called from the thread that does the work, several times a second at most.

    `done` of `total`, in bytes or files; the stages come one after another and do not return.
    """

    def update(self, stage: str, done: int, total: int) -> None: ...


class Silent:
    """A Progress that nobody looks at."""

    def update(self, stage: str, done: int, total: int) -> None:
        pass
