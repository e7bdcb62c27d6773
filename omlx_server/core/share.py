"""A share of the time that somebody keeps while others are served. Pure; times in seconds.

Counted in time, not in tokens: what a chunk takes differs a hundredfold between machines, and
tenfold between the head and the depth of one prompt.
"""

_ROUNDING = 0.999


class TimeShare:
    """Each second that others get makes a debt; while there is one, it is the turn of who is owed.
    A share of 0 owes nothing. With `whole` turns, whose length is about that of the others', their
    turn comes when one of them is owed. No more than a turn is ever owed: who could not use it has
    no credit for later."""

    def __init__(self, share: float, *, whole: bool = False) -> None:
        self._whole = whole
        self._debt = 0.0
        self._turn = 0.0
        self.change(share)

    def change(self, share: float) -> None:
        """Another share from now on."""
        self._debt_per_second = share / (1.0 - share)

    def others_had(self, seconds: float) -> None:
        """Others were served for so long."""
        if seconds <= 0:
            return
        self._turn = seconds
        most = self._turn * max(1.0, self._debt_per_second)
        self._debt = min(self._debt + self._turn * self._debt_per_second, most)

    def had(self, seconds: float) -> None:
        """Who is owed was served for so long. What goes beyond the debt is not saved up."""
        self._debt = max(0.0, self._debt - max(0.0, seconds))

    def forgive(self) -> None:
        """Nobody is there any more to whom it is owed."""
        self._debt = 0.0

    @property
    def is_owed(self) -> bool:
        return self._debt > (self._turn * _ROUNDING if self._whole else 0.0)
