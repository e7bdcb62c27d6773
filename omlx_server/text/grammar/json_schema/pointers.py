"""References within one JSON schema."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote


def resolved(root: Mapping[str, Any], reference: str) -> Any:
    """Return the part of `root` that a JSON pointer refers to, or None."""
    if reference != "#" and not reference.startswith("#/"):
        return None
    found: Any = root
    for part in reference.split("/")[1:]:
        key = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict) and key in found:
            found = found[key]
        elif isinstance(found, list) and key.isdecimal() and int(key) < len(found):
            found = found[int(key)]
        else:
            return None
    return found
