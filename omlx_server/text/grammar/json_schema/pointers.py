"""References within one JSON schema."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote


def resolve_pointer(root: Mapping[str, Any], reference: str) -> Any:
    """Return the part of `root` that a JSON pointer refers to, or None."""
    if reference != "#" and not reference.startswith("#/"):
        return None
    target: Any = root
    for part in reference.split("/")[1:]:
        key = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(target, dict) and key in target:
            target = target[key]
        elif isinstance(target, list) and key.isdecimal() and int(key) < len(target):
            target = target[int(key)]
        else:
            return None
    return target
