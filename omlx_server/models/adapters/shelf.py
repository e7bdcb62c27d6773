"""Finds the adapters of a model by their names: directories with an adapter_config.json.

    MODEL/adapters/NAME/             beside the files of the model
    DIRECTORY/ORG/MODEL/NAME/        below `adapters.directory`, by a name of the model

A name is looked up among those of the directories, and never made a path: so no name that a client
sends leads anywhere else.
"""

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from omlx_server.core.adapters import CONFIG, Adapter
from omlx_server.models.adapters.files import read_adapter, stamp_of

BESIDE = "adapters"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
NONE = "none"
"""What a request says that wants the model without its default adapter."""


def adapters_of(model: Path, names: Sequence[str], directory: Path | None) -> dict[str, Path]:
    """The directories of a model's adapters by their names, in order. Where two have the same name
    the one beside the model's files counts. `directory` is `adapters.directory`."""
    roots = [model / BESIDE]
    if directory is not None:
        roots += [directory / name for name in names if _is_safe(name)]
    found: dict[str, Path] = {}
    for root in roots:
        for path in _in(root):
            found.setdefault(path.name, path)
    return dict(sorted(found.items()))


def _is_safe(name: str) -> bool:
    """Whether a model's name stays below a directory as a path."""
    return all(NAME.fullmatch(part) for part in name.split("/"))


def _in(root: Path) -> Iterable[Path]:
    try:
        with os.scandir(root) as entries:
            names = [entry.name for entry in entries if NAME.fullmatch(entry.name)]
    except OSError:
        return []
    return [root / name for name in names if name != NONE and (root / name / CONFIG).is_file()]


@dataclass(slots=True)
class AdapterFiles:
    """Reads adapters, and remembers them until their files change. Any thread."""

    _read: dict[Path, tuple[object, Adapter]] = field(default_factory=dict)

    def adapter(self, directory: Path, name: str) -> Adapter:
        """The adapter in a directory. Raises AdapterUnusable as `read_adapter`."""
        stamp, known = stamp_of(directory), self._read.get(directory)
        if known is not None and known[0] == stamp and known[1].name == name:
            return known[1]
        adapter = read_adapter(directory, name)
        self._read[directory] = stamp, adapter
        return adapter
