"""How memory is shared out. Bytes everywhere; pure arithmetic."""

# Of the machine's memory: what the server may plan with. The rest is for the user's own apps.
_PLANNED_SHARE = 0.75
# Of what the weights leave of that: the prefix cache. The rest is for live caches and activations.
_HOT_SHARE = 0.5
_CHECKPOINT_SHARE = 0.25


def hot_cache_bytes(total: int, weights: int) -> int:
    """The hot tier's budget where the settings say "auto"."""
    return max(0, int((total * _PLANNED_SHARE - weights) * _HOT_SHARE))


def checkpoint_bytes(hot: int) -> int:
    """The share of the hot tier that recurrent state may take."""
    return int(hot * _CHECKPOINT_SHARE)
