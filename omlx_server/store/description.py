"""The description of a namespace, a short JSON file in its directory, and its size."""

import json
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

import msgspec

from omlx_server.core.blocks.keys import namespace_id
from omlx_server.store.block_file import FORMAT_VERSION

_HUB_PREFIX = "models--"


class NamespaceDescription(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`path` is the model's directory or "", `created` in seconds since 1970."""

    namespace: str
    model: str
    path: str
    block_size: int
    created: float
    format_version: int = FORMAT_VERSION

    @property
    def model_is_there(self) -> bool | None:
        """Whether the model's directory exists; None if unknown."""
        if not self.path:
            return None
        try:
            Path(self.path).stat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        except (OSError, ValueError):
            return None
        return True


@dataclass(frozen=True, slots=True)
class NamespaceUse:
    """`last_used` in seconds since 1970."""

    id: str
    blocks: int
    nbytes: int
    last_used: float | None
    description: NamespaceDescription | None

    @property
    def model(self) -> str:
        if self.description is None:
            return ""
        return _hub_name(self.path) or self.description.model

    @property
    def path(self) -> str:
        return self.description.path if self.description else ""

    @property
    def model_is_there(self) -> bool | None:
        return self.description.model_is_there if self.description else None

    def is_of(self, model: str) -> bool:
        """Whether `model` is its id, the model's name, or the end of its path."""
        parts = Path(model).parts
        if not parts:
            return False
        return model in (self.id, self.model) or Path(self.path).parts[-len(parts) :] == parts


def parse_description(data: bytes, id: str) -> NamespaceDescription | None:
    """Parse `data`; None unless it is valid and of the namespace with this id."""
    try:
        # Not msgspec's decoder: a path that is no UTF-8 has lone surrogates.
        description = msgspec.convert(json.loads(data), NamespaceDescription)
        is_valid = isfinite(description.created) and namespace_id(description.namespace) == id
        return description if is_valid else None
    except (RecursionError, ValueError):
        return None


def _hub_name(path: str) -> str:
    """Return "org/name" for ".../models--org--name/snapshots/<commit>", else ""."""
    parts = Path(path).parts
    if parts[-2:-1] != ("snapshots",) or not parts[-3].startswith(_HUB_PREFIX):
        return ""
    return parts[-3].removeprefix(_HUB_PREFIX).replace("--", "/")
