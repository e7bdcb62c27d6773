"""Interface to models that are not loaded: looks them up and fetches them."""

import threading
from dataclasses import dataclass
from typing import Literal, Protocol

from omlx_server.models.progress import ProgressListener

Kind = Literal["directory", "hub", "catalogue", "unknown"]
MOST_AT_ONCE = 2
"""The most fetches at the same time."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """The meaning of a name. `kind` "directory" is a model below models.dirs. `alias_of`: the name
    behind an alias, a short name or an address. `problem`: why it is unusable."""

    name: str
    kind: Kind
    alias_of: str | None = None
    names: tuple[str, ...] = ()
    path: str | None = None
    problem: str | None = None
    suggestions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Fetched:
    """A model on the disk. `is_checked` is false if the hub could not be asked."""

    names: tuple[str, ...]
    path: str
    fetched_bytes: int
    is_checked: bool


class ModelFetcher(Protocol):
    """Finds and fetches models. Blocking; any thread. A fetch holds one place of `free`."""

    @property
    def free(self) -> threading.BoundedSemaphore: ...

    def resolve(self, name: str) -> Resolved:
        """Uses no network."""

    def fetch(self, name: str, progress: ProgressListener) -> Fetched:
        """Fetch a model and check its files. What `progress` raises ends it; a later call
        continues. Raises ModelUnavailable."""
