"""The uses of memory at one moment, and the budgets that follow from a limit, in bytes."""

from dataclasses import asdict, dataclass, replace
from typing import Literal, TypeAlias

Wired: TypeAlias = Literal["off", "auto"] | int
# A buffer may be 16 KB larger than its array, which is much for a toy model.
_SMALL = 1 << 24
DRIFT = 0.02
"""The share of `held` by which the ledger may differ from MLX before it counts as wrong."""
_GB = 10**9
_RESERVE_SHARE = 0.25
_LEAST_RESERVE = 2 * _GB
_MOST_RESERVE = 16 * _GB
# The server's least share of the RAM, for any reserve.
_LEAST_SHARE = 0.05
# The hot tier's least share of the limit: the last turns of a conversation.
_HOT_FLOOR = 0.05
# It keeps this part of what the weights leave, whatever else is short.
_FLOOR_PART = 20
_CHECKPOINT_SHARE = 0.25
# The pool's share of the limit. Without it prompts were 10 % slower; more gained nothing.
_POOL_SHARE = 0.015
_QUEUE_SHARE = 0.0625
# The share of image features: needed again for a lost prefix, or an image in another conversation.
_FEATURES_SHARE = 0.03125


@dataclass(frozen=True, slots=True)
class Ledger:
    """All that MLX holds, and what is kept beside it."""

    limit: int = 0
    weights: int = 0
    live: int = 0  # caches of running sequences
    blocks: int = 0  # the hot tier without its checkpoints
    checkpoints: int = 0
    pending: int = 0  # on the way to the cold tier, and not in the hot one any more
    step: int = 0  # planned need of the step under way
    pool: int = 0  # freed buffers that wait for their next use
    machine: int = 0  # of the limit, not used while the machine is short of memory
    grammars: int = 0  # this and all below: not MLX's
    token_ids: int = 0
    responses: int = 0
    bodies: int = 0

    @property
    def held(self) -> int:
        """The bytes that MLX should call active while no step runs."""
        return self.weights + self.live + self.blocks + self.checkpoints + self.pending

    def __add__(self, other: "Ledger") -> "Ledger":
        """Add another model's caches and blocks; other lines count all models already."""
        return replace(
            self,
            live=self.live + other.live,
            blocks=self.blocks + other.blocks,
            checkpoints=self.checkpoints + other.checkpoints,
            pending=self.pending + other.pending,
        )

    def drift(self, active: int) -> float:
        """Return the share of `held` by which MLX's `active` bytes exceed it."""
        return (active - self.held) / max(self.held, _SMALL)

    def lines(self) -> dict[str, int]:
        lines = asdict(self)
        del lines["limit"]
        return lines

    def __str__(self) -> str:
        parts = [f"{name} {in_words(n)}" for name, n in self.lines().items() if n]
        return f"{', '.join(parts) or 'nothing held'} of {in_words(self.limit)}"


@dataclass(frozen=True, slots=True)
class MemoryReport:
    ledger: Ledger
    drift: float
    reliefs: tuple[tuple[str, int], ...]
    resident: int = 0
    pressure: int = 0  # the machine's level: 0, 1 to shrink, 2 to pause


def in_words(nbytes: int) -> str:
    value = float(nbytes)
    for unit in ("B", "KB", "MB"):
        if value < 999.5:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} GB"


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


def wired_bytes(wired: Wired, limit: int, working_set: int | None) -> int:
    """Return how much Metal may wire, which the system then can't take away; 0 without Metal."""
    if wired == "off" or not working_set:
        return 0
    return min(limit if wired == "auto" else wired, working_set)


def hot_cache_bytes(limit: int, taken: int) -> int:
    return int(max(limit - taken, limit * _HOT_FLOOR))


def hot_floor_bytes(beside_weights: int) -> int:
    """Return what the hot tier keeps in any case, of the bytes beside the weights."""
    return max(0, beside_weights) // _FLOOR_PART


def pool_bytes(limit: int) -> int:
    return int(limit * _POOL_SHARE)


def queue_bytes(limit: int, wanted: int) -> int:
    return min(wanted, int(limit * _QUEUE_SHARE))


def features_bytes(limit: int) -> int:
    return int(limit * _FEATURES_SHARE)


def checkpoint_bytes(hot: int) -> int:
    return int(hot * _CHECKPOINT_SHARE)
