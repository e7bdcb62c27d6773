"""The uses of memory at one moment, in bytes. A frozen value."""

from dataclasses import asdict, dataclass, replace

# A buffer may be 16 KB larger than its array, which is much for a toy model.
_SMALL = 1 << 24
DRIFT = 0.02
"""The share of `held` by which the ledger may differ from MLX before it counts as wrong."""


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


def in_words(nbytes: int) -> str:
    value = float(nbytes)
    for unit in ("B", "KB", "MB"):
        if value < 999.5:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} GB"
