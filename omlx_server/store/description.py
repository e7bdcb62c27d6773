"""What a namespace stands for, as a short JSON file in its directory."""

import json
import math
from dataclasses import dataclass
from pathlib import Path

from omlx_server.core.blocks.keys import namespace_id
from omlx_server.store.format import FORMAT_VERSION


@dataclass(frozen=True, slots=True)
class Description:
    """What a namespace stands for, for people and listings."""

    namespace: str
    model: str
    path: str
    block_size: int
    created: float
    format_version: int = FORMAT_VERSION

    @property
    def model_is_there(self) -> bool | None:
        """None when nobody can tell, for want of a right or of a whole path."""
        if not self.path:
            return None
        try:
            Path(self.path).stat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        except (OSError, ValueError):
            return None
        return True


def parse_description(data: bytes, id: str) -> Description | None:
    """What a description says if it is one, and of this namespace."""
    try:
        found = Description(**json.loads(data))
        own = namespace_id(found.namespace) == id
    except (AttributeError, RecursionError, TypeError, ValueError):
        return None
    texts = (found.namespace, found.model, found.path)
    numbers = (found.block_size, found.format_version)
    if not all(type(text) is str for text in texts):
        return None
    if not all(type(number) is int for number in numbers):
        return None
    return found if own and type(found.created) is float and math.isfinite(found.created) else None
