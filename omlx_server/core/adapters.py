"""LoRA adapters as the core knows them: a request has one or none. Pure.

A row's output depends on its adapter, so the adapter's digest is part of its block keys.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

CONFIG, WEIGHTS = "adapter_config.json", "adapters.safetensors"
"""The files of an adapter, as mlx-lm writes them."""
SIDES = "lora_a", "lora_b"
"""The endings of the names of a layer's two matrices."""

Shapes = Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]]
"""The shapes of the two matrices of each layer, by its path: [in, rank] and [rank, out]."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter in the directory `path`, compared by `digest` alone (SHA-256 of its files). A
    layer adds `scale` times the product of its two matrices of inner width `rank`. `nbytes` is the
    size of all matrices as float32; `shapes` come from the file's header."""

    digest: bytes
    name: str = field(compare=False)
    path: Path = field(compare=False)
    rank: int = field(compare=False)
    scale: float = field(compare=False)
    nbytes: int = field(compare=False)
    shapes: Shapes = field(compare=False, default_factory=dict)


def is_path(text: str) -> bool:
    """Return whether a setting's text is a directory's path and not a name."""
    return text.startswith((".", "~")) or "/" in text


def digest_of(config: bytes, weights_digest: bytes) -> bytes:
    """Return an adapter's digest from the content of its `config` and the SHA-256 of its
    weights."""
    return hashlib.sha256(hashlib.sha256(config).digest() + weights_digest).digest()


def salted(salt: bytes, adapter: Adapter | None) -> bytes:
    """Return the salt of the block keys of a tenant's requests with this adapter."""
    if adapter is None:
        return salt
    return hashlib.sha256(b"adapter" + adapter.digest + salt).digest()
