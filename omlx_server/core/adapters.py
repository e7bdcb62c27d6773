"""LoRA adapters, as far as the core knows them: a request has one or none. Pure.

What a row computes depends on its adapter. So the adapter's digest goes into the keys of its
blocks: rows with one adapter share no block with those of another one, or of the model alone.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

CONFIG, WEIGHTS = "adapter_config.json", "adapters.safetensors"
"""The files of an adapter, as mlx-lm writes them."""
SIDES = "lora_a", "lora_b"
"""What the names of the two matrices of a layer end with."""

Shapes = Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]]
"""The shapes of the two matrices of each layer, by its path in the model. Those of an adapter that
can be used are [in, rank] and [rank, out]."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter of a model. `digest` is the SHA-256 of its files, and the only field by which two
    are compared. `path` is its directory. A layer adds `scale` times the product of its two
    matrices, whose inner width is `rank`; all matrices have `nbytes` bytes as float32. `shapes` are
    those that the header of its file names."""

    digest: bytes
    name: str = field(compare=False)
    path: Path = field(compare=False)
    rank: int = field(compare=False)
    scale: float = field(compare=False)
    nbytes: int = field(compare=False)
    shapes: Shapes = field(compare=False, default_factory=dict)


def is_path(text: str) -> bool:
    """Whether what a setting says of an adapter is the path of its directory, and not a name."""
    return text.startswith((".", "~")) or "/" in text


def digest_of(config: bytes, weights_digest: bytes) -> bytes:
    """The digest of an adapter: the SHA-256 of those of its two files. `config` is the content of
    the one, `weights_digest` the SHA-256 of the other."""
    return hashlib.sha256(hashlib.sha256(config).digest() + weights_digest).digest()


def salted(salt: bytes, adapter: Adapter | None) -> bytes:
    """The salt of the block keys of a tenant's requests with this adapter. With None it is the
    tenant's own `salt`."""
    if adapter is None:
        return salt
    return hashlib.sha256(b"adapter" + adapter.digest + salt).digest()
