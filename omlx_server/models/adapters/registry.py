"""Finds the adapters of a model by their names: directories with an adapter_config.json.

    MODEL/adapters/NAME/             beside the files of the model
    DIRECTORY/ORG/MODEL/NAME/        below `adapters.directory`, by a name of the model

A client's name is compared with those of the directories, and never becomes a path.
"""

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

from omlx_server.core.adapters import CONFIG, Adapter, is_path
from omlx_server.errors import AdapterNotFound
from omlx_server.models.adapters.files import read_adapter, stamp_of

FOLDER = "adapters"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_MODEL = re.compile(rf"{NAME.pattern}(/{NAME.pattern})*")
NONE = "none"
"""What a request says that wants the model without its default adapter."""


@dataclass(frozen=True, slots=True)
class AdapterPlaces:
    """The places of a model's adapters: at `model`, and below `directory` by its `names`.
    `default` is a name, a path, or empty."""

    model: Path
    names: tuple[str, ...]
    directory: Path | None = None
    default: str = ""

    def all(self) -> dict[str, Path]:
        """Return the adapters' directories by name: the default's path, then the model's own,
        then others."""
        directories = {path.name: path for path in (self._default_path(),) if path is not None}
        roots = [self.model / FOLDER]
        if self.directory is not None:
            roots += [self.directory / name for name in self.names if _MODEL.fullmatch(name)]
        for root in roots:
            for path in _in(root):
                directories.setdefault(path.name, path)
        return dict(sorted(directories.items()))

    def directory_of(self, name: str) -> Path:
        """Raises AdapterNotFound."""
        directories = self.all()
        if name not in directories:
            raise AdapterNotFound(
                f"The model '{self.names[0]}' has no adapter '{name[:200]}'. "
                + (f"It has: {', '.join(directories)}." if directories else "It has none."),
                param="adapter",
            )
        return directories[name]

    @property
    def default_name(self) -> str:
        path = self._default_path()
        name = self.default if path is None else path.name
        return "" if name == NONE else name

    def _default_path(self) -> Path | None:
        return Path(self.default).expanduser().absolute() if is_path(self.default) else None


def _in(root: Path) -> Iterable[Path]:
    try:
        with os.scandir(root) as entries:
            names = [entry.name for entry in entries if NAME.fullmatch(entry.name)]
    except OSError:
        return []
    return [root / name for name in names if name != NONE and (root / name / CONFIG).is_file()]


@dataclass(slots=True)
class AdapterRegistry:
    """Reads adapters, and keeps them until their files change."""

    _known: dict[tuple[Path, str], tuple[object, Adapter]] = field(default_factory=dict)
    _locks: dict[tuple[Path, str], Lock] = field(default_factory=dict)
    _read: dict[Adapter, None] = field(default_factory=dict)

    def find(self, places: AdapterPlaces, name: str | None) -> Adapter | None:
        """Return the named or the default adapter, if any. Raises AdapterNotFound or
        AdapterUnusable."""
        wanted_name = places.default_name if name is None else name
        if not wanted_name or name == NONE:
            return None
        return self._adapter(places.directory_of(wanted_name), wanted_name)

    def all_read(self) -> list[Adapter]:
        return list(self._read)

    def _adapter(self, directory: Path, name: str) -> Adapter:
        key = directory, name
        with self._locks.setdefault(key, Lock()):  # others wait, and read no file again
            stamp, entry = stamp_of(directory), self._known.get(key)
            if entry is not None and entry[0] == stamp:
                return entry[1]
            adapter = read_adapter(directory, name)
            self._known[key] = stamp, adapter
            self._read[adapter] = None
            return adapter
