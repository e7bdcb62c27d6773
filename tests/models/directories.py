"""Model directories that hold little."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COMMIT = "c" * 40
CHAT: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 100,
    "max_position_embeddings": 2048,
}


@dataclass(frozen=True, slots=True)
class Places:
    """Where models are looked for, as the settings say it."""

    dirs: Sequence[Path] = ()
    use_hf_cache: bool = False
    other_programs: tuple[str, ...] = ()


def make(directory: Path, config: object = CHAT, weights: int = 10, **files: str) -> Path:
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "tokenizer.json").write_text("{}")
    (directory / "model.safetensors").write_bytes(no_tensors(weights))
    for name, text in files.items():
        (directory / name.replace("__", ".")).write_text(text)
    return directory


def no_tensors(nbytes: int) -> bytes:
    """A file of weights of that size which holds none."""
    return (nbytes - 8).to_bytes(8, "little") + b"{}".ljust(nbytes - 8) if nbytes else b""


def make_cached(cache: Path, repo_id: str, config: object = CHAT) -> Path:
    folder = cache / f"models--{repo_id.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(COMMIT)
    return make(folder / "snapshots" / COMMIT, config)
