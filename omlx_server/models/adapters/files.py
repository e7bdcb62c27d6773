"""Reads the files of an adapter, as mlx-lm writes them. Any thread."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import inf, isfinite
from pathlib import Path
from typing import Any, BinaryIO

from omlx_server.core.adapters import CONFIG, SIDES, WEIGHTS, Adapter, Shapes, digest_of
from omlx_server.errors import AdapterUnusable, one_line
from omlx_server.models import json_file
from omlx_server.models.safetensors_header import SafetensorsHeader, TensorHeader, header_of

_F32 = 4
_OTHER_TYPES = {
    "full": "it is a whole model, not LoRA: serve it as a model of its own (`mlx_lm.fuse`)",
    "dora": "it is DoRA, and only LoRA can share a batch: fuse it (`mlx_lm.fuse`)",
}


def read_adapter(directory: Path, name: str) -> Adapter:
    """Return the adapter, with its files' digest. Raises AdapterUnusable."""
    with _usable(name):
        config = json_file.text(directory / CONFIG)
        rank, scale = _parameters(json.loads(config))
        with (directory / WEIGHTS).open("rb") as file:
            header = _whole_header(file)
            shapes = _shapes(header.tensors)
            file.seek(0)
            digest = digest_of(config.encode(), hashlib.file_digest(file, "sha256").digest())
    return Adapter(digest, name, directory, rank, scale, header.numbers * _F32, shapes)


def check_adapter(directory: Path, name: str) -> None:
    """Raise as `read_adapter`; reads only the header of the weights."""
    with _usable(name):
        _parameters(json.loads(json_file.text(directory / CONFIG)))
        with (directory / WEIGHTS).open("rb") as file:
            _shapes(_whole_header(file).tensors)


@contextmanager
def _usable(name: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise _unusable(name, f"it has no {Path(error.filename).name}") from None
    except json_file.PROBLEMS as error:
        reason = error.strerror if isinstance(error, OSError) else one_line(error)
        raise _unusable(name, reason or "it can't be read") from error


def _whole_header(file: BinaryIO) -> SafetensorsHeader:
    header = header_of(file)
    if header is None or header.nbytes < header.whole_bytes:
        raise ValueError(f"{WEIGHTS} is damaged, or cut short")
    return header


def stamp_of(directory: Path) -> tuple[tuple[int, int, int], ...]:
    return tuple(_stamp(directory / name) for name in (CONFIG, WEIGHTS))


def _stamp(file: Path) -> tuple[int, int, int]:
    try:
        status = file.stat()
    except OSError:
        return 0, 0, 0
    return status.st_ino, status.st_size, status.st_mtime_ns


def _parameters(config: Any) -> tuple[int, float]:
    if not isinstance(config, Mapping):
        raise ValueError(f"{CONFIG} is no object")
    if "peft_type" in config:
        raise ValueError("it is in PEFT's format: mlx-lm's is needed")
    kind = config.get("fine_tune_type", "lora")
    if kind != "lora":
        raise ValueError(_OTHER_TYPES.get(str(kind), f"its fine_tune_type is no LoRA: {kind}"))
    parameters = config.get("lora_parameters")
    if not isinstance(parameters, Mapping):
        raise ValueError(f"{CONFIG} has no lora_parameters")
    rank, scale = parameters.get("rank"), _number(parameters.get("scale"))
    if isinstance(rank, bool) or not isinstance(rank, int) or rank < 1:
        raise ValueError("lora_parameters.rank must be a whole number above 0")
    if not isfinite(scale):
        also = ": alpha is another framework's, and not used" if "alpha" in parameters else ""
        raise ValueError(f"lora_parameters.scale must be a number{also}")
    return rank, scale


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return inf
    try:
        return float(value)
    except OverflowError:
        return inf


def _shapes(tensors: Mapping[str, TensorHeader]) -> Shapes:
    paths = dict[str, None]()
    for name in tensors:
        path, _, side = name.rpartition(".")
        if side not in SIDES:
            raise ValueError(f"{name[:200]} is no matrix of LoRA")
        paths[path] = None
    if not paths:
        raise ValueError("it has no matrices")
    shapes = dict[str, tuple[tuple[int, ...], tuple[int, ...]]]()
    for path in paths:
        a, b = (tensors.get(f"{path}.{side}") for side in SIDES)
        if a is None or b is None:
            raise ValueError(f"one of the two matrices of {path[:200]} is missing")
        shapes[path] = a.shape, b.shape
    return shapes


def _unusable(name: str, why: str) -> AdapterUnusable:
    return AdapterUnusable(f"the adapter '{name}' can't be used: {why}", param="adapter")
