"""How memory is shared out, and what a step takes of it. Bytes everywhere; pure arithmetic."""

from omlx_server.core.memory.budgets import (
    RAM_SHARE,
    checkpoint_bytes,
    hot_cache_bytes,
    pool_bytes,
)

__all__ = ["RAM_SHARE", "checkpoint_bytes", "hot_cache_bytes", "pool_bytes"]
