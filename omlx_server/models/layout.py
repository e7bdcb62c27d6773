"""What a model directory in MLX layout holds. Looks at files, changes none."""

import json
import re
from pathlib import Path

from omlx_server.errors import ModelUnavailable

LAYOUT_HINT = (
    "A model directory in MLX layout is needed: config.json, tokenizer.json and "
    "model*.safetensors. mlx-community on Hugging Face has most models in it."
)
SHARD = re.compile(r"(?P<stem>model.*)-\d{5}-of-(?P<count>\d{5})\.safetensors")
OTHER_WEIGHTS = {".gguf": "GGUF", ".bin": "PyTorch", ".pt": "PyTorch", ".pth": "PyTorch"}


def missing_from(directory: Path) -> str:
    """What a server can't do without and is not there; empty when the directory is complete."""
    if not (directory / "config.json").is_file():
        return "config.json"
    shards = _indexed_shards(directory)
    if shards is None:
        return _missing_shards({path.name for path in directory.glob("model*.safetensors")})
    return next((name for name in shards if not (directory / name).is_file()), "")


def check(directory: Path) -> None:
    """Raises ModelUnavailable unless the directory is a model in MLX layout."""
    missing = missing_from(directory)
    if not missing:
        return
    kinds = {OTHER_WEIGHTS[p.suffix] for p in directory.iterdir() if p.suffix in OTHER_WEIGHTS}
    other = f"; it holds {' and '.join(sorted(kinds))} weights" if kinds else ""
    raise ModelUnavailable(f"{directory} has no {missing}{other}", hint=LAYOUT_HINT)


def _missing_shards(names: set[str]) -> str:
    """Without an index, the names tell: model-00001-of-00003.safetensors is one of three."""
    if not names:
        return "model*.safetensors"
    for found in filter(None, map(SHARD.fullmatch, sorted(names))):
        stem, count = found["stem"], found["count"]
        for i in range(1, int(count) + 1):
            wanted = f"{stem}-{i:05}-of-{count}.safetensors"
            if wanted not in names:
                return wanted
    return ""


def _indexed_shards(directory: Path) -> list[str] | None:
    """The weight files that the index names, or None without an index."""
    index = directory / "model.safetensors.index.json"
    if not index.is_file():
        return None
    try:
        return sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, AttributeError) as error:
        raise ModelUnavailable(f"{index} can't be read: {error}", hint=LAYOUT_HINT) from error
