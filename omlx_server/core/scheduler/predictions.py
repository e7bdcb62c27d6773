"""Predicts the times of prompts and answers from recent ones. Pure."""

import math
from collections.abc import Sequence

from omlx_server.core.scheduler.limits import SchedulerLimits
from omlx_server.core.scheduler.sequence import PrefillState
from omlx_server.core.scheduler.sequence import Sequence as Row
from omlx_server.core.step import Chunk

# The newest tokens that decide the pace of prompts.
_WINDOW_TOKENS = 16_384
STAY_SECONDS = 1.0
"""The shortest stay of an admitted sequence before it makes way."""
TURN_SECONDS = 2.0
"""The most device seconds of an owner's turn. Past it, others of less time go first."""
# No wait is told before so many tokens are measured: the first ones are of short prompts.
_LEAST_TOKENS = 2048
# Weights of the newest decode and answer in their means.
_NEWEST_DECODE, _NEWEST_ANSWER = 1 / 32, 1 / 16
# Seconds of a token, and tokens of an answer, before any measurement.
_UNKNOWN_TOKEN, _UNKNOWN_ANSWER = 1e-3, 256
# A token takes at most this multiple of the mean: a slope of short prompts tells little of deep
# ones.
_DEEPEST = 16.0


class PrefillPace:
    """Estimates prefill times: a token's time is linear in its depth, fitted to recent chunks."""

    def __init__(self) -> None:
        self.tokens = 0
        self._depth = 0.0  # means over computed tokens, their variance and covariance
        self._seconds = 0.0
        self._depth_variance = 0.0
        self._covariance = 0.0

    def note_chunks(self, seconds: float, chunks: Sequence[Chunk]) -> None:
        tokens = sum(len(chunk.tokens) for chunk in chunks)
        if not tokens or seconds <= 0:
            return
        depths = sum(len(chunk.tokens) * (chunk.start + chunk.stop) / 2 for chunk in chunks)
        weight = tokens / (min(self.tokens, _WINDOW_TOKENS) + tokens)
        self.tokens += tokens
        deeper, longer = depths / tokens - self._depth, seconds / tokens - self._seconds
        self._depth += weight * deeper
        self._seconds += weight * longer
        share = 1 - weight
        self._depth_variance = share * (self._depth_variance + weight * deeper * deeper)
        self._covariance = share * (self._covariance + weight * deeper * longer)

    def seconds(self, start: int, stop: int) -> float:
        if not self.tokens:
            return max(0, stop - start) * _UNKNOWN_TOKEN
        depth = (start + stop) / 2
        token = self._seconds + self._slope * (depth - self._depth)
        return max(0, stop - start) * min(token, _DEEPEST * self._seconds)

    @property
    def _slope(self) -> float:
        if not (self._depth_variance and self._depth):
            return 0.0
        slope = self._covariance / self._depth_variance
        return min(max(0.0, slope), self._seconds / self._depth)


class Predictions:
    def __init__(self, limits: SchedulerLimits) -> None:
        self.limits = limits
        self.pace = PrefillPace()
        self.part = 1.0
        """Which part of the device this model has."""
        self._decode = self._row_token = _UNKNOWN_TOKEN
        self._answer = float(_UNKNOWN_ANSWER)

    @property
    def are_known(self) -> bool:
        return self.pace.tokens >= _LEAST_TOKENS

    def note_decode(self, seconds: float, rows: int) -> None:
        self._decode += _NEWEST_DECODE * (seconds - self._decode)
        self._row_token += _NEWEST_DECODE * (seconds / rows - self._row_token)

    def note_answer(self, tokens: int) -> None:
        self._answer += _NEWEST_ANSWER * (tokens - self._answer)

    def first_token(self, prefill: PrefillState, *, anew: bool = False) -> float:
        """Return the device seconds to a prompt's first token. `anew`: after a preemption."""
        limits, stop = self.limits, prefill.target
        start = prefill.restored if anew else stop - prefill.remaining
        chunks = math.ceil((stop - start) / limits.prefill_chunk_tokens)
        reading = self.pace.seconds(start, stop)
        tokens = max(map(self._left, prefill.sequences))
        stay = min(STAY_SECONDS, tokens * self._decode) / limits.max_batch_size
        return reading / (1 - limits.decode_share) + (chunks + 1) * self._decode + stay

    def step(self, chunks: Sequence[Chunk]) -> float:
        reading = sum(self.pace.seconds(chunk.start, chunk.stop) for chunk in chunks)
        return reading + self._decode

    def prompt(self, prefill: PrefillState) -> float:
        """Return the device seconds left of a prompt and its answers."""
        return self._from(prefill.target - prefill.remaining, prefill)

    def whole(self, prefill: PrefillState) -> float:
        """Return the device seconds of a prompt and its answers from its admission on."""
        return self._from(max(prefill.restored, prefill.expected), prefill)

    def _from(self, start: int, prefill: PrefillState) -> float:
        reading = self.pace.seconds(start, prefill.target)
        return reading + sum(self.answer(sequence) for sequence in prefill.sequences)

    def answer(self, row: Row) -> float:
        return self._left(row) * self._row_token

    def _left(self, row: Row) -> float:
        """Return the expected further tokens; past the mean, as many as there are."""
        output = len(row.output)
        return min(row.request.sampling.max_tokens - output, max(self._answer - output, output))
