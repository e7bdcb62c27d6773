"""The balance of what speculation costs and gains. Pure. Each step pays in a little, gains pay
in too, and a draft is tried only when the balance covers its loss."""

_SHARE = 0.01
# Plain steps: the first balance, and the highest. A loss below -_FIRST is forgiven.
_FIRST = 1.5
_MOST = 8.0


class DraftBalance:
    def __init__(self) -> None:
        self._balance = _FIRST

    def most_seconds(self, plain: float) -> float:
        """Return the longest affordable verifying step."""
        return plain * (1 + self._balance)

    def note_plain_step(self) -> None:
        self._pay(_SHARE)

    def note_failure(self) -> None:
        self._balance = -_MOST

    def note_verified_step(self, verify: float, plain: float, rows: int, tokens: int) -> None:
        steps = tokens / rows  # plain ones that give as many tokens
        self._pay(steps - verify / plain + _SHARE)

    def _pay(self, steps: float) -> None:
        least = min(self._balance, -_FIRST)
        self._balance = max(least, min(_MOST, self._balance + steps))
