"""The server's memory limit, and its shares, in bytes."""

from typing import Literal

_GB = 10**9
_RESERVE_SHARE = 0.25
_LEAST_RESERVE = 2 * _GB
_MOST_RESERVE = 16 * _GB
# The server's least share of the RAM, for any reserve.
_LEAST_SHARE = 0.05
# The hot tier's least share of the limit: the last turns of a conversation.
_HOT_FLOOR = 0.05
_CHECKPOINT_SHARE = 0.25
# The pool's share of the limit. Without it prompts were 10 % slower; more gained nothing.
_POOL_SHARE = 0.015
_QUEUE_SHARE = 0.0625
# The share of image features: needed again for a lost prefix, or an image in another conversation.
_FEATURES_SHARE = 0.03125


def reserve_bytes(ram: int) -> int:
    """Return the bytes left to the system and the user's apps."""
    return int(min(max(ram * _RESERVE_SHARE, _LEAST_RESERVE), _MOST_RESERVE, ram / 2))


def limit_bytes(ram: int, working_set: int | None, reserve: int) -> int:
    """Return the RAM without the reserve, within Metal's working set."""
    limit = max(ram - reserve, int(ram * _LEAST_SHARE))
    return min(limit, working_set) if working_set else limit


def limit_of(
    limit: int | Literal["auto"], reserve: int | Literal["auto"], ram: int, working_set: int | None
) -> int:
    if limit != "auto":
        return limit
    return limit_bytes(ram, working_set, reserve_bytes(ram) if reserve == "auto" else reserve)


def wired_bytes(limit: int, working_set: int | None) -> int:
    return min(limit, working_set) if working_set else 0


def hot_cache_bytes(limit: int, taken: int) -> int:
    return int(max(limit - taken, limit * _HOT_FLOOR))


def pool_bytes(limit: int) -> int:
    return int(limit * _POOL_SHARE)


def queue_bytes(limit: int, wanted: int) -> int:
    return min(wanted, int(limit * _QUEUE_SHARE))


def features_bytes(limit: int) -> int:
    return int(limit * _FEATURES_SHARE)


def checkpoint_bytes(hot: int) -> int:
    return int(hot * _CHECKPOINT_SHARE)
