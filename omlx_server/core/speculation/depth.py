"""Learns how often drafts are right, and chooses the depth with the most tokens a second. Pure.

A verifying step feeds every row one token more than its longest draft: rows x (1 + depth) places.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

# The depths that are tried.
DEPTHS = (1, 2, 3, 4, 6, 8, 12, 16)
# How much longer a step may take for a row without a draft.
_MOST_SLOWED = 1.25
# The least gain that is worth a wider step, since the host waits for its tokens.
_LEAST_GAIN = 1.05
# The part of a measurement that is forgotten with each plain step, and with each token that was
# not predicted, so that what was slow or wrong once is tried again.
_FORGOTTEN = 0.02
# The least share of the probed time that is believed: the machine may have been busy then.
_LEAST_SHARE = 0.25
# The weight of the first chance, in tokens.
_WEIGHT = 4.0
# The newest tokens that decide.
_WINDOW = 32.0


@dataclass(frozen=True, slots=True)
class Offer:
    """A row's possible draft: for each token the chance that it is right if those before are."""

    chances: tuple[float, ...] = ()

    def gains(self) -> list[float]:
        """Return the expected tokens with a draft of 0, 1, 2 … tokens."""
        gains, right = [1.0], 1.0
        for chance in self.chances:
            right *= chance
            gains.append(gains[-1] + right)
        return gains


class Bet(NamedTuple):
    """A `depth`, and the tokens a second that it promises for all rows; depth 0 with a bonus."""

    depth: int
    rate: float


class StepCosts:
    """The time of a decode by its places, from probes that later measurements correct."""

    def __init__(self, probed: Sequence[tuple[int, float]]) -> None:
        if not probed:
            raise ValueError("no step was measured")
        self._probed = tuple(probed)
        self._by_places: dict[int, float] = {}  # a cache: there are few widths
        # By whether a step verifies: its mean seconds beyond the probed ones.
        self._excess = {False: 0.0, True: 0.0}
        self._was_measured = {False: False, True: False}

    def seconds(self, places: int, *, verifies: bool) -> float:
        probed = self._probed_seconds(places)
        kind = verifies if self._was_measured[verifies] else not verifies
        return max(probed + self._excess[kind], probed * _LEAST_SHARE)

    def note_step(self, places: int, seconds: float, *, verifies: bool) -> None:
        excess = seconds - self._probed_seconds(places)
        weight = 0.1 if self._was_measured[verifies] else 1.0
        self._excess[verifies] += weight * (excess - self._excess[verifies])
        self._was_measured[verifies] = True
        if not verifies:  # what was slow once is tried again
            self._excess[True] += _FORGOTTEN * (self._excess[False] - self._excess[True])

    def forget(self) -> None:
        for kind in self._excess:
            self._excess[kind] *= 1 - _FORGOTTEN

    def _probed_seconds(self, places: int) -> float:
        seconds = self._by_places.get(places)
        if seconds is None:
            seconds = self._by_places[places] = self._between_probes(places)
        return seconds

    def _between_probes(self, places: int) -> float:
        before = self._probed[0]
        for after in self._probed:
            if places <= after[0]:
                return _interpolate(before, after, places)
            before = after
        first, last = self._probed[0], self._probed[-1]
        if last[0] == first[0]:  # nothing is known of other widths
            return last[1] * places / last[0]
        return _interpolate(first, last, places)


def best_depth(
    offers: Sequence[Offer], costs: StepCosts, most: int, most_seconds: float, drafting: float = 0.0
) -> Bet:
    """Return the best depth up to `most` within `most_seconds`; 0 for a plain step. The drafter
    takes `drafting` seconds for a token of all rows."""
    rows = len(offers)
    plain_seconds = costs.seconds(rows, verifies=False)
    best = Bet(0, _LEAST_GAIN * rows / plain_seconds)
    longest = max([len(offer.chances) for offer in offers], default=0)
    if not longest:
        return best
    if any(not offer.chances for offer in offers):  # a row that only waits for the others
        most_seconds = min(most_seconds, _MOST_SLOWED * plain_seconds)
    gains = [offer.gains() for offer in offers]
    for depth in _depths_up_to(min(most, longest)):
        seconds = costs.seconds(rows * (1 + depth), verifies=True) + depth * drafting
        rate = sum([row[min(depth, len(row) - 1)] for row in gains]) / seconds
        if rate > best.rate and seconds <= most_seconds:
            best = Bet(depth, rate)
    return best


def _depths_up_to(most: int) -> list[int]:
    depths = [depth for depth in DEPTHS if depth <= most]
    return [*depths, most] if depths and depths[-1] < most < DEPTHS[-1] else depths


def _interpolate(low: tuple[int, float], high: tuple[int, float], places: int) -> float:
    if high[0] == low[0]:
        return high[1]
    share = (places - low[0]) / (high[0] - low[0])
    return low[1] + share * (high[1] - low[1])


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
