"""Block keys: everything that a block depends on is in its name, and nothing else."""

import random

from omlx_server.core.blocks.keys import block_key, chain, root_key

ROOT = root_key("model|kv|64", b"")


def test_a_key_depends_on_namespace_salt_parent_and_tokens() -> None:
    roots = [ROOT, root_key("model|kv|32", b""), root_key("model|kv|64", b"a")]
    keys = {
        block_key(root, tokens) for root in roots for tokens in ((1, 2), (2, 1), (1,), (1, 2, 0))
    }
    keys |= {block_key(key, (1, 2)) for key in keys}
    assert len(keys) == 2 * 3 * 4


def test_namespace_and_salt_cannot_be_shifted_into_each_other() -> None:
    assert root_key("ab", b"c") != root_key("a", b"bc") != root_key("", b"abc")


def test_keys_are_the_same_on_every_machine() -> None:
    """They name files: a change here makes everything that was stored a miss."""
    assert ROOT.hex().startswith("486625d56473ed9a")
    assert block_key(ROOT, range(64)).hex().startswith("4992847ffda722e7")


def test_a_chain_names_full_blocks_only() -> None:
    tokens = tuple(range(11))
    keys = chain(ROOT, tokens, 4)
    assert keys == [
        block_key(ROOT, tokens[:4]),
        block_key(block_key(ROOT, tokens[:4]), tokens[4:8]),
    ]
    assert chain(ROOT, tokens[:3], 4) == []


def test_chains_share_exactly_the_blocks_that_their_tokens_share() -> None:
    rng = random.Random(0)
    for _ in range(300):
        a, b = ([rng.randrange(2) for _ in range(rng.randrange(20))] for _ in range(2))
        shared = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)
        whole = (min(len(a), len(b)) if shared is None else shared) // 3
        ours, theirs = chain(ROOT, a, 3), chain(ROOT, b, 3)
        assert sum(x == y for x, y in zip(ours, theirs, strict=False)) == whole
