"""Keys of blocks, unique for their content and the same on every machine: a SHA-256 chain.

    root key   = H(namespace, salt)
    block key  = H(parent key, token ids)
    state key  = H(parent key, token ids, "state")

The namespace stands for the model and its cache format, the salt for a tenant and its adapter.
"""

import hashlib
from array import array
from collections.abc import Sequence
from typing import NewType

BlockKey = NewType("BlockKey", bytes)

NO_KEY = BlockKey(b"")


def root_key(namespace: str, salt: bytes) -> BlockKey:
    name = namespace.encode()
    return BlockKey(hashlib.sha256(len(name).to_bytes(8, "little") + name + salt).digest())


def block_key(parent: BlockKey, tokens: Sequence[int]) -> BlockKey:
    return BlockKey(hashlib.sha256(parent + array("I", tokens).tobytes()).digest())


def checkpoint_key(parent: BlockKey, tokens: Sequence[int]) -> BlockKey:
    return BlockKey(hashlib.sha256(parent + array("I", tokens).tobytes() + b"state").digest())


def namespace_id(namespace: str) -> str:
    """Return 16 hex digits, for directories."""
    return hashlib.sha256(namespace.encode()).hexdigest()[:16]


def chain(root: BlockKey, tokens: Sequence[int], size: int) -> list[BlockKey]:
    """Return the keys of the full blocks of `tokens`."""
    keys, parent = [], root
    for start in range(0, len(tokens) - size + 1, size):
        parent = block_key(parent, tokens[start : start + size])
        keys.append(parent)
    return keys


def shared(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many first tokens are equal."""
    pairs = zip(one, other, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
