"""What the admin routes need to know of models that are not loaded, and to fetch others; wiring/
brings the object."""

import threading
from dataclasses import dataclass
from typing import Literal, Protocol

from omlx_server.models.progress import ProgressListener

Kind = Literal["directory", "hub", "catalogue", "unknown"]
MOST_AT_ONCE = 2
"""The most fetches at the same time."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """What a name stands for. `kind`: "directory" for one below models.dirs, "hub" and "catalogue"
    for models of these, "unknown" for nothing. `alias_of`: the name for which it is an alias, a
    short name or an address. `names` and `path` are those of a model that is here. `suggestions`
    are names that are near, if it is unknown; `problem` says why it can't be used."""

    name: str
    kind: Kind
    alias_of: str | None = None
    names: tuple[str, ...] = ()
    path: str | None = None
    problem: str | None = None
    suggestions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Fetched:
    """A model that is here. `fetched_bytes` came in this call; `is_checked` is false where the hub
    could not be asked."""

    names: tuple[str, ...]
    path: str
    fetched_bytes: int
    is_checked: bool


class ModelFetcher(Protocol):
    """Looks for models on the disk, and fetches them. Blocking; any thread. Who fetches holds one
    of the `MOST_AT_ONCE` places of `free` until the fetch has ended."""

    @property
    def free(self) -> threading.BoundedSemaphore: ...

    def resolve(self, name: str) -> Resolved:
        """What a name would be. Uses no network."""

    def fetch(self, name: str, progress: ProgressListener) -> Fetched:
        """Fetch a model, and check what is here of it. Whatever `progress` raises ends it; what has
        come stays for the next time.

        Raises:
            ModelUnavailable: there is no such model, it can't be served, or not be fetched.
        """
