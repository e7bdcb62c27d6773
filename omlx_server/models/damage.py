"""Finds damaged files of a model by a look at the headers of its weights, not at all their bytes.

Touches no array and needs no tokenizer; any thread. Never raises: a file that can't be read is
damaged.
"""

import os
from pathlib import Path

import msgspec

from omlx_server.errors import ModelUnavailable, first_line
from omlx_server.models import json_file, layout

_LENGTH_BYTES = 8
# MLX reads no longer header.
_MOST_HEADER_BYTES = 1 << 25


class _Tensor(msgspec.Struct):
    """`data_offsets` count from the end of the header. Metadata have none."""

    data_offsets: tuple[int, int] = (0, 0)


class _TokenizerFile(msgspec.Struct):
    model: dict[str, msgspec.Raw]


# MLX writes null where there are no metadata.
_HEADER = msgspec.json.Decoder(dict[str, _Tensor | None])
_TOKENIZER = msgspec.json.Decoder(_TokenizerFile)


def damage_in(directory: Path) -> str:
    """The name of the first file of weights or of the tokenizer that is damaged, and why; empty
    when none is."""
    return damaged_weights(directory) or _damaged_tokenizer(directory / "tokenizer.json")


def damaged_weights(directory: Path) -> str:
    """The name of the first file of weights that is damaged, and why; empty when none is. Only
    headers are read, which takes milliseconds."""
    try:
        files = layout.weight_files(directory)
    except ModelUnavailable as error:
        return error.message
    return next((said for file in files if (said := _damaged(file))), "")


def _damaged(file: Path) -> str:
    """https://github.com/huggingface/safetensors: the length of a header, the header, arrays."""
    try:
        with file.open("rb") as opened:
            there = os.fstat(opened.fileno()).st_size
            length = int.from_bytes(opened.read(_LENGTH_BYTES), "little")
            if not 0 < length <= min(there - _LENGTH_BYTES, _MOST_HEADER_BYTES):
                return f"{file.name} is cut, or no safetensors file"
            header = _HEADER.decode(opened.read(length))
    except (OSError, ValueError) as error:
        return f"{file.name} can't be read: {first_line(error)}"
    ends = max((tensor.data_offsets[1] for tensor in header.values() if tensor), default=0)
    whole = _LENGTH_BYTES + length + ends
    return f"{file.name} is cut: {there} of {whole} bytes are there" if there < whole else ""


def _damaged_tokenizer(file: Path) -> str:
    """Some models have their tokenizer in other files."""
    if not file.exists():
        return ""
    try:
        _TOKENIZER.decode(json_file.text(file))
    except json_file.PROBLEMS as error:
        return f"{file.name} can't be used: {first_line(error)}"
    return ""
