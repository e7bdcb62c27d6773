"""Which files of a model's directory hold its weights. Pure; any thread."""

from typing import Any

INDEX = "model.safetensors.index.json"
"""The file that names the files of weights. Where it is there, no other weights count."""


def indexed(index: Any) -> list[str]:
    """The names of the files of weights that an index names, by its JSON value. Raises ValueError
    where it names none."""
    named = index.get("weight_map") if isinstance(index, dict) else None
    if not (isinstance(named, dict) and named):
        raise ValueError("its weight_map names no files")
    return sorted({str(name) for name in named.values()})
