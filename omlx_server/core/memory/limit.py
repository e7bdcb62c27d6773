"""How much of the machine the server may use. Bytes; pure arithmetic."""

from typing import Literal

_GB = 10**9
_RESERVE_SHARE = 0.25
_LEAST_RESERVE = 2 * _GB
_MOST_RESERVE = 16 * _GB
# Whatever reserve is asked for, the server gets this.
_LEAST_SHARE = 0.05


def reserve_bytes(ram: int) -> int:
    """What is left to the system and the user's own apps where the settings say "auto"."""
    return int(min(max(ram * _RESERVE_SHARE, _LEAST_RESERVE), _MOST_RESERVE, ram / 2))


def limit_bytes(ram: int, working_set: int | None, reserve: int) -> int:
    """The limit where the settings say "auto": what the reserve leaves of the RAM, and no more than
    a GPU can well use (Metal's recommended working set)."""
    left = max(ram - reserve, int(ram * _LEAST_SHARE))
    return min(left, working_set) if working_set else left


def limit_of(
    limit: int | Literal["auto"],
    reserve: int | Literal["auto"],
    ram: int,
    working_set: int | None,
) -> int:
    """The limit as the settings want it."""
    if limit != "auto":
        return limit
    return limit_bytes(ram, working_set, reserve_bytes(ram) if reserve == "auto" else reserve)


def wired_bytes(limit: int, working_set: int | None) -> int:
    """How much may be wired, so that it is never paged out: more than the working set makes macOS
    refuse. 0 where there is no such thing."""
    return min(limit, working_set) if working_set else 0
