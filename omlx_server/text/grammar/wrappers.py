"""Constraints that add something to another one. Owned by one thread at a time."""

from collections.abc import Sequence
from copy import copy
from typing import Self

from omlx_server.core.request import Constraint


class FixedMask:
    """A constraint that always allows every token of `mask`."""

    done = False
    problem: str | None = None
    too_costly = False
    takes_drafts = True

    def __init__(self, mask: bytes) -> None:
        self._mask = mask

    def copy(self) -> Self:
        return self

    def mask(self) -> bytes:
        return self._mask

    def take(self, token: int) -> None: ...
    def forced(self) -> Sequence[int]:
        return ()


class ConstraintWrapper:
    """Base of constraints around another one, `inner`, which the answer must obey, too."""

    def __init__(self, inner: Constraint) -> None:
        self._inner = inner

    @property
    def done(self) -> bool:
        return self._inner.done

    @property
    def problem(self) -> str | None:
        return self._inner.problem

    @property
    def too_costly(self) -> bool:
        return self._inner.too_costly

    @property
    def takes_drafts(self) -> bool:
        return self._inner.takes_drafts

    def copy(self) -> Self:
        copied = copy(self)
        copied._inner = self._inner.copy()
        return copied
