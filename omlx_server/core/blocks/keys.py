"""Names of blocks that no other content can have: a SHA-256 chain over the tokens.

    root key   = H(namespace, salt)
    block key  = H(parent key, token ids)
    state key  = H(parent key, token ids, "state")

The namespace stands for the model, the KV format of every layer and the format version; the salt
for a tenant and for the adapter of its requests (core/adapters.py). So a key says all that a block
depends on, and is the same on every machine. Beyond the last full block that two sequences share,
their common tokens are counted one by one.
"""

import hashlib
from array import array
from collections.abc import Sequence
from typing import NewType

BlockKey = NewType("BlockKey", bytes)

NO_KEY = BlockKey(b"")


def root_key(namespace: str, salt: bytes) -> BlockKey:
    """The key that chains of one namespace and one tenant begin with."""
    name = namespace.encode()
    return BlockKey(hashlib.sha256(len(name).to_bytes(8, "little") + name + salt).digest())


def block_key(parent: BlockKey, tokens: Sequence[int]) -> BlockKey:
    """The key of the block that follows `parent` with these tokens."""
    return BlockKey(hashlib.sha256(parent + array("I", tokens).tobytes()).digest())


def checkpoint_key(parent: BlockKey, tokens: Sequence[int]) -> BlockKey:
    """The key of the recurrent state after these tokens, which follow `parent`."""
    return BlockKey(hashlib.sha256(parent + array("I", tokens).tobytes() + b"state").digest())


def namespace_id(namespace: str) -> str:
    """A short name of a namespace for directories and listings: 16 hex digits."""
    return hashlib.sha256(namespace.encode()).hexdigest()[:16]


def chain(root: BlockKey, tokens: Sequence[int], size: int) -> list[BlockKey]:
    """The keys of all full blocks of a sequence, in order; `size` tokens make a block."""
    keys, parent = [], root
    for start in range(0, len(tokens) - size + 1, size):
        parent = block_key(parent, tokens[start : start + size])
        keys.append(parent)
    return keys


def shared(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two sequences share at their start."""
    pairs = zip(one, other, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
