"""What the tokens of a sequence must obey: a grammar, seen from the engine.

A request carries one that nobody changes; each of its rows takes a copy along, on the mlx thread,
and tells it every token of the answer, also those of a row that comes back after it was dropped.
"""

from collections.abc import Sequence
from typing import Protocol


class Constraint(Protocol):
    """The state of a grammar after the tokens that it was told."""

    @property
    def done(self) -> bool:
        """Nothing may follow: the answer ends here."""

    @property
    def problem(self) -> str | None:
        """Why it can't go on, if it can't. A request with a problem ends with an error."""

    @property
    def too_costly(self) -> bool:
        """Whether the problem is what the grammar costs, which is the fault of its author."""

    def copy(self) -> "Constraint":
        """The same state, to go on by itself."""

    def mask(self) -> bytes:
        """The tokens that may come next, as little-endian u32 words: token t by bit t % 32 of word
        t // 32. Words that are missing allow nothing. Never all zeros without a `problem`."""

    def take(self, token: int) -> None:
        """Go on by a token that the mask allows."""

    def forced(self) -> Sequence[int]:
        """The tokens that must come next whatever is sampled, as many as are known."""
