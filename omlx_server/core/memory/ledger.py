"""What the memory is used for at one moment, line by line. Bytes; a frozen value."""

from dataclasses import asdict, dataclass, replace

# A buffer may be 16 KB larger than its array, which is much in proportion to that of a toy model.
_SMALL = 1 << 24
DRIFT = 0.02
"""The share of what is held by which the account may differ from MLX before it counts as wrong."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """One account of all that MLX holds, and of what is kept beside it.

    weights      of all models that are loaded
    live         caches of sequences at work
    blocks       the hot tier without its checkpoints
    checkpoints  checkpoints of the hot tier
    pending      on the way to the cold tier, and not in the hot one any more
    step         what the step under way needs for itself, as planned
    pool         freed buffers that wait for their next use
    grammars     compiled ones that are kept for their next use; not MLX's, and estimated
    token_ids    of texts that were encoded, with the texts, for the next turn; not MLX's
    responses    those of the Responses API that are kept in memory; not MLX's
    bodies       of requests, from their first byte until they are parsed; not MLX's
    """

    limit: int = 0
    weights: int = 0
    live: int = 0
    blocks: int = 0
    checkpoints: int = 0
    pending: int = 0
    step: int = 0
    pool: int = 0
    grammars: int = 0
    token_ids: int = 0
    responses: int = 0
    bodies: int = 0

    @property
    def held(self) -> int:
        """The bytes that MLX should call active while no step runs."""
        return self.weights + self.live + self.blocks + self.checkpoints + self.pending

    def __add__(self, other: "Ledger") -> "Ledger":
        """What two models hold together: live, blocks, checkpoints and pending are added. All other
        lines are those of `self`: limit, weights and pool are of all models already."""
        return replace(
            self,
            live=self.live + other.live,
            blocks=self.blocks + other.blocks,
            checkpoints=self.checkpoints + other.checkpoints,
            pending=self.pending + other.pending,
        )

    def drift(self, active: int) -> float:
        """By what share of `held` the account differs from the `active` bytes that MLX reports;
        positive when something is held that no line knows."""
        return (active - self.held) / max(self.held, _SMALL)

    def lines(self) -> dict[str, int]:
        """All lines by name, in bytes, without the limit."""
        lines = asdict(self)
        del lines["limit"]
        return lines

    def __str__(self) -> str:
        parts = [f"{name} {in_words(n)}" for name, n in self.lines().items() if n]
        return f"{', '.join(parts) or 'nothing held'} of {in_words(self.limit)}"


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """A snapshot for metrics and health. `drift` is that of `Ledger.drift`; `reliefs` counts the
    uses of each relief of the ladder (core/memory/guard.py); `resident` is the bytes of RAM that
    the system says the process takes."""

    ledger: Ledger
    drift: float
    reliefs: tuple[tuple[str, int], ...]
    resident: int = 0


def in_words(nbytes: int) -> str:
    """Bytes with three digits, in decimal units as the settings have them."""
    value = float(nbytes)
    for unit in ("B", "KB", "MB"):
        if value < 999.5:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} GB"
