"""The cold tier's directory as tools see it while no model runs: what is there, what is damaged,
what is to go. For the command line; blocking.

It changes something only inside `writing`, which holds the lock: beside a server that writes there
nothing is removed. A directory that is not there is never made.
"""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from omlx_server.core.cold import ColdIndex
from omlx_server.core.keys import namespace_id
from omlx_server.core.packed import Record
from omlx_server.store.files import Description, Files, Found, Lock, read_secret
from omlx_server.store.format import Corrupt, decode
from omlx_server.store.medium import MediumError, Name

_SECRET_BYTES = 32
_HUB_PREFIX = "models--"
UNREADABLE = "io"
"""A reason of `Checked` that may pass: the file is left, even by who removes what is damaged."""


class InUse(Exception):
    """Another process holds the lock."""


@dataclass(frozen=True, slots=True)
class Use:
    """What one namespace takes. `last_used` is None without blocks."""

    id: str
    blocks: int
    nbytes: int
    last_used: float | None
    description: Description | None

    @property
    def model(self) -> str:
        """What people call it; empty when nobody knows."""
        if self.description is None:
            return ""
        return _hub_name(self.path) or self.description.model

    @property
    def path(self) -> str:
        return self.description.path if self.description else ""

    @property
    def model_is_there(self) -> bool | None:
        """None when nobody can tell."""
        return self.description.model_is_there if self.description else None

    def is_of(self, model: str) -> bool:
        """Whether `model` is its id, the model's name, or the end of its path, as in org/name."""
        wanted = Path(model).parts
        if not wanted:
            return False
        return model in (self.id, self.model) or Path(self.path).parts[-len(wanted) :] == wanted


@dataclass(frozen=True, slots=True)
class Checked:
    """A block that was read. `reason` is empty when every byte is right."""

    found: Found
    reason: str


class ColdDirectory:
    """One directory of the cold tier, which may be missing."""

    def __init__(self, root: Path) -> None:
        self.root = root.expanduser().absolute()
        self._files = Files(self.root, writable=False)

    def uses(self) -> list[Use]:
        """Every namespace, by id."""
        return [
            Use(use.id, use.count, use.nbytes, use.last_used, use.description)
            for use in self._files.namespaces()
        ]

    def blocks(self) -> list[Found]:
        """All blocks, the least recently used first."""
        return sorted(self._files.scan(), key=lambda found: found.mtime)

    def has_secret(self) -> bool:
        """Without it, nothing that is stored can be used."""
        return read_secret(self.root) is not None

    def check(self, blocks: list[Found]) -> Iterator[Checked]:
        """Read blocks whole. One that has gone meanwhile is not wrong."""
        secret = read_secret(self.root) or secrets.token_bytes(_SECRET_BYTES)
        for found in blocks:
            yield Checked(found, self._reason(found.name, secret))

    def heads(self, blocks: list[Found]) -> Iterator[Record | None]:
        """What each block says of itself; None when it makes no sense or is gone."""
        for found in blocks:
            yield self._record(found.name)

    @contextmanager
    def writing(self) -> Iterator[Files]:
        """The right to remove, for one `with`.

        Raises:
            InUse: another process has it.
            MediumError: nobody can write here.
        """
        lock = Lock(self.root)
        if not lock.acquire():
            if not os.access(self.root, os.W_OK):
                raise MediumError("read-only", f"{self.root} can't be written to")
            raise InUse
        try:
            yield Files(self.root)
        finally:
            lock.release()

    # -- inside --------------------------------------------------------------------------

    def _reason(self, name: Name, secret: bytes) -> str:
        try:
            data = self._files.get(name)
            if data is not None:
                decode(data, secret, name)
        except (Corrupt, MediumError) as error:
            return error.reason
        return ""

    def _record(self, name: Name) -> Record | None:
        try:
            return self._files.record(name)
        except MediumError:
            return None


def least_needed(
    blocks: list[Found], records: list[Record | None], gone_models: list[str], nbytes: int
) -> list[Name]:
    """What has to go, in order, so that `nbytes` are left: as the running server would choose.

    `blocks` come least recently used first, with their `records`. A block goes after its children;
    those of `gone_models` (namespace ids) go before all others.
    """
    index = ColdIndex(nbytes)
    index.load(found.entry for found in blocks)
    for found, record in zip(blocks, records, strict=True):
        if record is not None and namespace_id(record.namespace) == found.name.namespace:
            index.learn(record)
    for namespace in gone_models:
        index.make_first_to_go(namespace)
    return [Name.of(entry.namespace, entry.key) for entry in index.shrink_to(nbytes)]


def _hub_name(path: str) -> str:
    """The repository of a snapshot in Hugging Face's cache, whose own name is a hash."""
    parts = Path(path).parts
    if parts[-2:-1] != ("snapshots",) or not parts[-3].startswith(_HUB_PREFIX):
        return ""
    return parts[-3].removeprefix(_HUB_PREFIX).replace("--", "/")
