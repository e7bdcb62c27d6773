"""Checks which files a model directory in MLX layout has."""

import re
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from omlx_server.core.experts.files import ExpertFiles, ExpertSizes, StoredTensor
from omlx_server.core.model_files.gguf_names import parts_of
from omlx_server.core.model_files.weights import GGUF_LINKS, gguf_bytes, indexed
from omlx_server.core.model_files.weights import INDEX as INDEX
from omlx_server.errors import ModelUnavailable
from omlx_server.models import json_file
from omlx_server.models.safetensors_header import read_header

_State = tuple[str, int, int]  # a file's path, size and time
LAYOUT_HINT = (
    "A model directory in MLX layout is needed: config.json, tokenizer.json and "
    "model*.safetensors. mlx-community on Hugging Face has most models in it."
)
SHARD = re.compile(r"(?P<stem>model.*)-\d{5}-of-(?P<count>\d{5})\.safetensors")
OTHER_WEIGHTS = {".gguf": "GGUF", ".bin": "PyTorch", ".pt": "PyTorch", ".pth": "PyTorch"}


def missing_from(directory: Path) -> str:
    """Return the first missing file that a server needs, or "". Raises ModelUnavailable for a
    bad index."""
    if not (directory / "config.json").is_file():
        return "config.json"
    shards = _indexed_shards(directory)
    if shards is None:
        if links := gguf_links(directory):
            return next((link.name for link in links if not link.is_file()), "")
        # A link of Hugging Face's cache may lead nowhere.
        files = (path for path in directory.glob("model*.safetensors") if path.is_file())
        return missing_shards(path.name for path in files)
    return next((name for name in shards if not (directory / name).is_file()), "")


def is_complete(directory: Path) -> bool:
    try:
        return not missing_from(directory)
    except (ModelUnavailable, OSError):
        return False


def check(directory: Path) -> None:
    """Raise ModelUnavailable unless the directory is a model in MLX layout."""
    missing = missing_from(directory)
    if missing:
        other = holding(path.name for path in directory.iterdir())
        raise ModelUnavailable(f"{directory} has no {missing}{other}", hint=LAYOUT_HINT)


def holding(names: Iterable[str]) -> str:
    """Return the end of an error message on weights in another layout, or ""."""
    ends = {Path(name).suffix for name in names}
    kinds = {kind for end, kind in OTHER_WEIGHTS.items() if end in ends}
    return f"; it holds {' and '.join(sorted(kinds))} weights" if kinds else ""


def weight_files(directory: Path) -> list[Path]:
    """Return the files of the index, else model*.safetensors. Raises ModelUnavailable for a bad
    index."""
    shards = _indexed_shards(directory)
    if shards is None:
        return sorted(directory.glob("model*.safetensors")) or gguf_links(directory)
    return [directory / name for name in shards]


def gguf_links(directory: Path) -> list[Path]:
    """Return the links to a GGUF file's parts, if the directory shows one."""
    return sorted(directory.glob(GGUF_LINKS))


def real_path(directory: Path) -> Path:
    """Return the GGUF file that a directory shows, else the directory."""
    return next((link.resolve() for link in gguf_links(directory)), directory)


def gguf_files(path: Path) -> list[Path]:
    """Return the real files that a directory shows, or of one that can't be shown."""
    if path.suffix == ".gguf" and path.is_file():
        parts = map(Path, parts_of(str(path)))
        return [part.resolve() for part in parts if part.is_file()]
    return [link.resolve() for link in gguf_links(path) if link.is_file()]


def weight_bytes(directory: Path) -> int:
    """Return the bytes of the files, or what a GGUF file's tensors take in MLX's form."""
    config = json_file.read_json(directory / "config.json")
    if isinstance(config, dict) and (nbytes := gguf_bytes(config)):
        return nbytes
    try:
        return sum(path.stat().st_size for path in weight_files(directory) if path.is_file())
    except (ModelUnavailable, OSError):
        return 0


def expert_sizes(directory: Path) -> ExpertSizes | None:
    """Return the sizes of a model's experts, if it has any."""
    config = json_file.read_json(directory / "config.json")
    if "expert" not in str(config):
        return None
    files = expert_files(directory)
    return files.sizes if files is not None else None


def expert_files(directory: Path) -> ExpertFiles | None:
    """Return a model's stored tensors; None without safetensors files."""
    try:
        files = [file.resolve() for file in weight_files(directory)]
        states = ((str(file), file.stat()) for file in files)
        return _read(tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in states))
    except (ModelUnavailable, OSError, ValueError):
        return None


@lru_cache(maxsize=32)
def _read(files: tuple[_State, ...]) -> ExpertFiles | None:
    tensors = dict[str, StoredTensor]()
    for name, _, _ in files:
        header = read_header(Path(name))
        if header is None:
            return None
        for tensor, one in header.tensors.items():
            start, stop = one.data_offsets
            place = header.data_start + start
            tensors[tensor] = StoredTensor(name, place, stop - start, one.dtype, one.shape)
    return ExpertFiles(tensors)


def missing_shards(files: Iterable[str]) -> str:
    """Return the first missing file by the names of the others, or ""."""
    names = set(files)
    if not names:
        return "model*.safetensors"
    for shard in filter(None, map(SHARD.fullmatch, sorted(names))):
        stem, count = shard["stem"], shard["count"]
        for i in range(1, int(count) + 1):
            name = f"{stem}-{i:05}-of-{count}.safetensors"
            if name not in names:
                return name
    return ""


def _indexed_shards(directory: Path) -> list[str] | None:
    index = directory / INDEX
    if not index.is_file():
        return None
    try:
        return indexed(json_file.read(index))
    except json_file.PROBLEMS as error:
        raise ModelUnavailable(f"{index} can't be read: {error}", hint=LAYOUT_HINT) from error
