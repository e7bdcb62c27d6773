"""Finds damaged files of a model by the headers of its weights. Never raises; any thread."""

from pathlib import Path

import msgspec

from omlx_server.errors import ModelUnavailable, one_line
from omlx_server.models import json_file, layout
from omlx_server.models.safetensors_header import read_header


class _TokenizerFile(msgspec.Struct):
    model: dict[str, msgspec.Raw]


_TOKENIZER = msgspec.json.Decoder(_TokenizerFile)


def damage_in(directory: Path) -> str:
    """Return the first damaged file of weights or tokenizer, and why; else ""."""
    return damaged_weights(directory) or _damaged_tokenizer(directory / "tokenizer.json")


def damaged_weights(directory: Path) -> str:
    """Return the first damaged file of weights, and why; else ""."""
    try:
        files = layout.weight_files(directory)
    except ModelUnavailable as error:
        return error.message
    return next((problem for file in files if (problem := _damaged(file))), "")


def _damaged(file: Path) -> str:
    if file.suffix == ".gguf":
        return ""  # its view was made from its head
    try:
        header = read_header(file)
    except (OSError, ValueError) as error:
        return f"{file.name} can't be read: {one_line(error)}"
    if header is None:
        return f"{file.name} is cut, or no safetensors file"
    nbytes, whole = header.nbytes, header.whole_bytes
    return f"{file.name} is cut: {nbytes} of {whole} bytes are there" if nbytes < whole else ""


def _damaged_tokenizer(file: Path) -> str:
    if not file.exists():
        return ""
    try:
        _TOKENIZER.decode(json_file.text(file))
    except json_file.PROBLEMS as error:
        return f"{file.name} can't be used: {one_line(error)}"
    return ""
