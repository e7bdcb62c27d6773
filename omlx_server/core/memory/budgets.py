"""How the limit is shared out. Bytes everywhere; pure arithmetic."""

# However large the weights are, a conversation should find its last turns.
_HOT_FLOOR = 0.05
_CHECKPOINT_SHARE = 0.25
# Freed buffers that MLX keeps for the next step. Taking them from the system anew for each prompt
# made prompts 10 % slower; three times as much made them no faster, and the process much larger.
_POOL_SHARE = 0.015
_QUEUE_SHARE = 0.0625


def hot_cache_bytes(limit: int, taken: int) -> int:
    """The hot tier's budget where the settings say "auto": what is left when weights, the worst
    step, pool and queue are `taken`. Live caches get their part from it when they need it."""
    return int(max(limit - taken, limit * _HOT_FLOOR))


def pool_bytes(limit: int) -> int:
    """How much freed memory may wait for its next use while there is work."""
    return int(limit * _POOL_SHARE)


def queue_bytes(limit: int, wanted: int) -> int:
    """How much may wait to be written to the cold tier."""
    return min(wanted, int(limit * _QUEUE_SHARE))


def checkpoint_bytes(hot: int) -> int:
    """The share of the hot tier that recurrent state may take."""
    return int(hot * _CHECKPOINT_SHARE)
