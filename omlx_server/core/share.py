"""Shares of the time that somebody keeps while others are served. Pure; times in seconds.

Counted in time, not in tokens: what a chunk takes differs a hundredfold between machines, and
tenfold between the head and the depth of one prompt.
"""

from collections.abc import Collection, Sequence

_ROUNDING = 0.999
# Who was served beside its turn, while others could not be, has had so many seconds at most.
MOST_AHEAD = 10.0
# The pace is that of the last so many tokens.
_PACE_TOKENS = 2048


class TimeShare:
    """Each second that others get makes a debt; while there is one, it is the turn of who is owed.
    A share of 0 owes nothing. No more than a turn is ever owed: who could not use it has no credit
    for later."""

    def __init__(self, share: float) -> None:
        self._debt = 0.0
        self.change(share)

    def change(self, share: float) -> None:
        """Another share from now on."""
        self._debt_per_second = share / (1.0 - share)

    def others_had(self, seconds: float) -> None:
        """Others were served for so long."""
        if seconds <= 0:
            return
        most = seconds * max(1.0, self._debt_per_second)
        self._debt = min(self._debt + seconds * self._debt_per_second, most)

    def had(self, seconds: float) -> None:
        """Who is owed was served for so long. What goes beyond the debt is not saved up."""
        self._debt = max(0.0, self._debt - max(0.0, seconds))

    def forgive(self) -> None:
        """Nobody is there any more to whom it is owed."""
        self._debt = 0.0

    @property
    def is_owed(self) -> bool:
        return self._debt > 0.0


class Shares:
    """Several who wait share the time by their parts, in whole turns.

    The first of them is served by default. Another one is, when it is owed as much as its last turn
    took: so it keeps its part however much the first one wants, and the first waits for one turn of
    each of the others at most. Those who are not there have no claim. (Deficit round robin, in
    seconds, by M. Shreedhar and G. Varghese.)
    """

    def __init__(self, parts: Sequence[float]) -> None:
        self._parts = tuple(parts)
        self._owed = [0.0] * len(parts)
        self._turns = [0.0] * len(parts)

    def order(self, waiting: Collection[int]) -> list[int]:
        """Whose turn it is, and who is next."""
        owed = [who for who in waiting if who and self._is_owed_a_turn(who)]
        owed.sort(key=lambda who: -self._owed[who])
        return [*owed, *sorted(set(waiting) - set(owed))]

    def had(self, who: int, seconds: float, waiting: Collection[int]) -> None:
        """One was served for so long, while these waited or were served."""
        if seconds <= 0:
            return
        self._turns[who] = seconds
        for one in range(len(self._parts)):
            if one == who:
                owed = self._owed[one] - seconds * (1 - self.part(one, waiting))
            elif one in waiting:
                owed = self._owed[one] + seconds * self.part(one, {*waiting, who})
                owed = min(owed, self._turns[one] + max(self._turns))
            else:
                owed = min(self._owed[one], 0.0)
            self._owed[one] = max(-MOST_AHEAD, owed)

    def _is_owed_a_turn(self, who: int) -> bool:
        return 0 < self._owed[who] >= self._turns[who] * _ROUNDING

    def part(self, who: int, waiting: Collection[int]) -> float:
        """Which share of the time it has while these wait."""
        return self._parts[who] / sum(self._parts[one] for one in {*waiting, who})


class Pace:
    """How fast prompts are read of late, with all that is done beside it, and all that they wait
    for."""

    def __init__(self) -> None:
        self.seconds_per_token = 0.0
        self._waited = 0.0

    def took(self, seconds: float, tokens: int, *, waiting: bool = False) -> None:
        """A step that read so many tokens of prompts took so long. `waiting`: more are to be
        read, so that a step without any was time that they waited."""
        if tokens <= 0 or seconds <= 0:
            self._waited = self._waited + max(0.0, seconds) if waiting else 0.0
            return
        weight = tokens / (tokens + _PACE_TOKENS) if self.seconds_per_token else 1.0
        took = (seconds + self._waited) / tokens
        self._waited = 0.0
        self.seconds_per_token += weight * (took - self.seconds_per_token)
