"""The files that hold a model's weights. Pure."""

from typing import Any

INDEX = "model.safetensors.index.json"
"""The file that names the files of weights; if it exists, no others count."""


def indexed(index: Any) -> list[str]:
    """Return the weight files in an index's JSON value. Raises ValueError where it names none."""
    files = index.get("weight_map") if isinstance(index, dict) else None
    if not (isinstance(files, dict) and files):
        raise ValueError("its weight_map names no files")
    return sorted({str(name) for name in files.values()})
