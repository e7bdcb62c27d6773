"""Learns how likely a row's next drafted token is right. Pure."""

# The weight of the first chance, in tokens.
_WEIGHT = 4.0
# The newest tokens that decide.
_WINDOW = 32.0
# The part forgotten with each token without a prediction.
_FORGOTTEN = 0.02


class Chance:
    """The recent share of predicted tokens that were right, drafted or not."""

    def __init__(self, first_chance: float = 0.5) -> None:
        self._first_chance = first_chance
        self._right = first_chance * _WEIGHT
        self._tried = _WEIGHT

    @property
    def value(self) -> float:
        return self._right / self._tried

    def learn(self, right: float, tried: float) -> None:
        kept = max(0.0, 1 - tried / _WINDOW)
        self._right = self._right * kept + right
        self._tried = self._tried * kept + tried

    def forget(self) -> None:
        """Move a little back to the first chance."""
        self._right += _FORGOTTEN * (self._first_chance * _WEIGHT - self._right)
        self._tried += _FORGOTTEN * (_WEIGHT - self._tried)
