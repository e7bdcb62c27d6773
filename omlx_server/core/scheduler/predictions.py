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
# No wait is promised before so many tokens are measured: the first ones are of short prompts.
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
        # Over computed tokens: means of the depth and of the seconds a token took, the variance
        # of the depth, and the covariance of both.
        self._mean_depth = 0.0
        self._mean_seconds = 0.0
        self._depth_variance = 0.0
        self._covariance = 0.0

    def note_chunks(self, seconds: float, chunks: Sequence[Chunk]) -> None:
        tokens = sum(len(chunk.tokens) for chunk in chunks)
        if not tokens or seconds <= 0:
            return
        depths = sum(len(chunk.tokens) * (chunk.start + chunk.stop) / 2 for chunk in chunks)
        weight = tokens / (min(self.tokens, _WINDOW_TOKENS) + tokens)
        self.tokens += tokens
        deeper, longer = depths / tokens - self._mean_depth, seconds / tokens - self._mean_seconds
        self._mean_depth += weight * deeper
        self._mean_seconds += weight * longer
        share = 1 - weight
        self._depth_variance = share * (self._depth_variance + weight * deeper * deeper)
        self._covariance = share * (self._covariance + weight * deeper * longer)

    def seconds(self, start: int, stop: int) -> float:
        if not self.tokens:
            return max(0, stop - start) * _UNKNOWN_TOKEN
        depth = (start + stop) / 2
        token_seconds = self._mean_seconds + self._slope * (depth - self._mean_depth)
        return max(0, stop - start) * min(token_seconds, _DEEPEST * self._mean_seconds)

    @property
    def _slope(self) -> float:
        if not (self._depth_variance and self._mean_depth):
            return 0.0
        slope = self._covariance / self._depth_variance
        return min(max(0.0, slope), self._mean_seconds / self._mean_depth)


class Predictions:
    """Predicts device seconds of one model's prompts, answers and steps."""

    def __init__(self, limits: SchedulerLimits) -> None:
        self.limits = limits
        self.pace = PrefillPace()
        self.device_part = 1.0
        """The part of the device's time that this model gets."""
        self._decode_seconds = _UNKNOWN_TOKEN  # of one decode of all rows
        self._row_token_seconds = _UNKNOWN_TOKEN  # of one token of one row
        self._mean_answer_tokens = float(_UNKNOWN_ANSWER)

    @property
    def are_known(self) -> bool:
        return self.pace.tokens >= _LEAST_TOKENS

    def note_decode(self, seconds: float, rows: int) -> None:
        self._decode_seconds += _NEWEST_DECODE * (seconds - self._decode_seconds)
        self._row_token_seconds += _NEWEST_DECODE * (seconds / rows - self._row_token_seconds)

    def note_answer(self, tokens: int) -> None:
        self._mean_answer_tokens += _NEWEST_ANSWER * (tokens - self._mean_answer_tokens)

    def first_token_seconds(self, prefill: PrefillState, *, restarts: bool = False) -> float:
        """Return the device seconds to a prompt's first token. `restarts`: after a preemption."""
        limits, stop = self.limits, prefill.target
        start = prefill.restored if restarts else stop - prefill.remaining
        chunks = math.ceil((stop - start) / limits.prefill_chunk_tokens)
        prefill_seconds = self.pace.seconds(start, stop) / (1 - limits.decode_share)
        # Rows decode beside each chunk, and once more for the first token.
        decode_seconds = (chunks + 1) * self._decode_seconds
        # Then it keeps a row of the batch for its shortest stay, and those behind it wait.
        answer_tokens = max(map(self._answer_tokens_left, prefill.sequences))
        stay_seconds = min(STAY_SECONDS, answer_tokens * self._decode_seconds)
        return prefill_seconds + decode_seconds + stay_seconds / limits.max_batch_size

    def step_seconds(self, chunks: Sequence[Chunk]) -> float:
        prefill_seconds = sum(self.pace.seconds(chunk.start, chunk.stop) for chunk in chunks)
        return prefill_seconds + self._decode_seconds

    def seconds_left(self, prefill: PrefillState) -> float:
        """Return the device seconds left of a prompt and its answers."""
        return self._seconds_from(prefill.target - prefill.remaining, prefill)

    def seconds_since_admission(self, prefill: PrefillState) -> float:
        """Return the device seconds of a prompt and its answers from its admission on."""
        return self._seconds_from(max(prefill.restored, prefill.expected), prefill)

    def _seconds_from(self, start: int, prefill: PrefillState) -> float:
        prompt_seconds = self.pace.seconds(start, prefill.target)
        return prompt_seconds + sum(map(self.answer_seconds, prefill.sequences))

    def answer_seconds(self, row: Row) -> float:
        return self._answer_tokens_left(row) * self._row_token_seconds

    def _answer_tokens_left(self, row: Row) -> float:
        """Return the expected further tokens; past the mean, as many as there are."""
        written = len(row.output)
        expected = max(self._mean_answer_tokens - written, written)
        return min(row.request.sampling.max_tokens - written, expected)
