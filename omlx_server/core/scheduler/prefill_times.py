"""How long it takes to prefill (to read) prompts, as measured of late. Pure; times in seconds."""

from collections.abc import Sequence

from omlx_server.core.step import Chunk

# About so many of the newest tokens decide the estimates.
_WINDOW_TOKENS = 16_384
# Nothing is predicted before so many tokens: the first ones are the head of short prompts.
_LEAST_TOKENS = 2048


class Pace:
    """Estimates the time of prompts. A token takes longer the more tokens stand before it, since
    attention looks at all of them: its time is a linear function of its depth, fitted to what was
    read of late. `beside` tells what other work adds while prompts wait."""

    def __init__(self) -> None:
        self._tokens = 0
        self._depth = 0.0  # means of the tokens that were read, and how they vary together
        self._seconds = 0.0
        self._depth_variance = 0.0
        self._covariance = 0.0
        self._prefilling = 0.0  # seconds of late, for prompts and for all else
        self._other = 0.0

    @property
    def is_known(self) -> bool:
        """Whether enough tokens were read to predict times by them."""
        return self._tokens >= _LEAST_TOKENS

    def took(
        self, seconds: float, prefilling: float, chunks: Sequence[Chunk], *, waiting: bool
    ) -> None:
        """Note that a step took `seconds`, of which `prefilling` to read these `chunks`. `waiting`:
        more prompts wait, so that a step without chunks counts as time that they waited."""
        if not (chunks or waiting):
            return
        tokens = sum(len(chunk.tokens) for chunk in chunks)
        if tokens and prefilling > 0:
            self._fit(prefilling / tokens, sum(map(_depths, chunks)) / tokens, tokens)
            kept = max(0.0, 1 - tokens / _WINDOW_TOKENS)
            self._prefilling = kept * self._prefilling + prefilling
            self._other *= kept
        if tokens or waiting:
            self._other += max(0.0, seconds - prefilling)

    def _fit(self, seconds: float, depth: float, tokens: int) -> None:
        """Note that `tokens` tokens of this mean `depth` took `seconds` each."""
        weight = tokens / (min(self._tokens, _WINDOW_TOKENS) + tokens)
        self._tokens += tokens
        deeper, longer = depth - self._depth, seconds - self._seconds
        self._depth += weight * deeper
        self._seconds += weight * longer
        kept = 1 - weight
        self._depth_variance = kept * (self._depth_variance + weight * deeper * deeper)
        self._covariance = kept * (self._covariance + weight * deeper * longer)

    def seconds(self, start: int, stop: int) -> float:
        """Estimated seconds to read tokens [start, stop) of a prompt; 0 where nothing was read
        yet."""
        depth = (start + stop) / 2
        token = self._seconds + self._slope * (depth - self._depth)
        return max(0, stop - start) * token

    def beside(self, share: float) -> float:
        """Seconds that pass for each second in which prompts are read: as many as of late, but at
        least 1 / (1 - share), since rows that decode keep this `share` of the time."""
        of_late = 1 + self._other / self._prefilling if self._prefilling else 1.0
        return max(of_late, 1 / (1 - share))

    @property
    def _slope(self) -> float:
        """How many seconds a token takes longer for each token before it: not less than 0, and not
        so much that the time at depth 0 would be negative."""
        if not (self._depth_variance and self._depth):
            return 0.0
        slope = self._covariance / self._depth_variance
        return min(max(0.0, slope), self._seconds / self._depth)


def _depths(chunk: Chunk) -> float:
    """The sum of the depths of a chunk's tokens."""
    return len(chunk.tokens) * (chunk.start + chunk.stop) / 2
