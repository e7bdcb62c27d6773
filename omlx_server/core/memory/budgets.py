"""How the memory of a machine is shared out. Bytes everywhere; pure arithmetic."""

# Of the RAM of a machine without a GPU: what the server may plan with. The rest is for the user's
# own apps. (Metal recommends a working set by itself.)
RAM_SHARE = 0.75
# Of what the weights leave: the prefix cache. The rest is for live caches and activations.
_HOT_SHARE = 0.5
# However large the weights are, a conversation should find its last turns.
_HOT_FLOOR = 0.05
_CHECKPOINT_SHARE = 0.25
# Freed buffers that MLX keeps for the next step. Taking them from the system anew for each prompt
# made prompts 10 % slower.
_POOL_SHARE = 0.05


def hot_cache_bytes(usable: int, weights: int) -> int:
    """The hot tier's budget where the settings say "auto"."""
    return int(max((usable - weights) * _HOT_SHARE, usable * _HOT_FLOOR))


def pool_bytes(usable: int) -> int:
    """How much freed memory may wait for its next use while there is work."""
    return int(usable * _POOL_SHARE)


def checkpoint_bytes(hot: int) -> int:
    """The share of the hot tier that recurrent state may take."""
    return int(hot * _CHECKPOINT_SHARE)
