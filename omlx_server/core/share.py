"""Rows that decode keep a share of the time while prompts are read. Pure; times in seconds.

Counted in time, not in tokens: what a chunk takes differs a hundredfold between machines, and
tenfold between the head and the depth of one prompt.
"""


class DecodeShare:
    """Each second of reading prompts makes a debt to the rows; while there is one, they decode
    and nothing else runs. A share of 0 alternates: one decode, one chunk."""

    def __init__(self, share: float) -> None:
        self._debt_per_second = share / (1.0 - share)
        self._debt = 0.0

    def read(self, seconds: float) -> None:
        """Prompts were read for so long while rows waited."""
        self._debt += max(0.0, seconds) * self._debt_per_second

    def decoded(self, seconds: float) -> None:
        """Rows have decoded for so long. What they had beyond their share is not saved up."""
        self._debt = max(0.0, self._debt - max(0.0, seconds))

    def forgive(self) -> None:
        """Nobody decodes any more."""
        self._debt = 0.0

    @property
    def is_owed(self) -> bool:
        """Whether it is the rows' turn."""
        return self._debt > 0.0
