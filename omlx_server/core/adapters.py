"""LoRA adapters: a request has one or none, and its block keys depend on it. Pure."""

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
    """An adapter, compared by `digest` alone."""

    digest: bytes
    name: str = field(compare=False)
    path: Path = field(compare=False)
    rank: int = field(compare=False)  # the inner width of a layer's two matrices
    scale: float = field(compare=False)  # of their product, which the layer adds
    nbytes: int = field(compare=False)  # of all of them as float32
    shapes: Shapes = field(compare=False, default_factory=dict)


def is_path(text: str) -> bool:
    return text.startswith((".", "~")) or "/" in text


def digest_of(config: bytes, weights_digest: bytes) -> bytes:
    return hashlib.sha256(hashlib.sha256(config).digest() + weights_digest).digest()


def salted(salt: bytes, adapter: Adapter | None) -> bytes:
    """Return the salt of blocks made with this adapter."""
    if adapter is None:
        return salt
    return hashlib.sha256(b"adapter" + adapter.digest + salt).digest()
