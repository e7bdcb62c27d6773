"""What a model's guard has to know of the other models that share the memory. Pure."""

from typing import Protocol


class Neighbours(Protocol):
    """The other models together, as the next step is planned, and all jobs (engine/jobs.py); bytes.
    `count` of them keep a part of the hot tier. `promised`: what they hold live when all that they
    have let in is finished, and jobs begin that wait for room.
    They are `at_work` while they have live caches or are being loaded: it will not stay so."""

    @property
    def count(self) -> int: ...
    @property
    def live(self) -> int: ...
    @property
    def promised(self) -> int: ...
    @property
    def pending(self) -> int: ...
    @property
    def hot(self) -> int: ...
    @property
    def at_work(self) -> bool: ...

    def make_room(self, nbytes: int, floor: int, *, at_rest: bool) -> int:
        """Let so much of their hot tiers go: those of models without requests, or of the others,
        each down to `floor`. Returns what went."""
        ...


class Alone:
    """There are none."""

    count = live = promised = pending = hot = 0
    at_work = False

    def make_room(self, nbytes: int, floor: int, *, at_rest: bool) -> int:
        return 0
