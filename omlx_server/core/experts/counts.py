"""Counts of experts that stay on the disk. Pure."""

from dataclasses import dataclass


@dataclass(slots=True)
class ExpertCounts:
    """Counts over all layers and forwards."""

    used: int = 0
    missing: int = 0  # used, and read while the forward waited
    guessed: int = 0  # read ahead
    right: int = 0  # guessed, and used next
    bytes_read: int = 0

    def after(self, earlier: "ExpertCounts") -> "ExpertCounts":
        return ExpertCounts(
            self.used + earlier.used,
            self.missing + earlier.missing,
            self.guessed + earlier.guessed,
            self.right + earlier.right,
            self.bytes_read + earlier.bytes_read,
        )
