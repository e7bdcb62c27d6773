"""Drafts from the text itself: the tokens that followed an earlier copy of the newest ones.

    context   ... a b c d e f ... a b c | d e f ...
                        ^ source        ^ the next token

After prompt look-up decoding (Saxena, 2023).
"""

from array import array
from collections.abc import Iterable, Sequence
from sys import byteorder

from omlx_server.core.images import FIRST_ID

_WIDTH = 4  # bytes of a token
# Lengths of the runs to look for. What follows a long run is more often right.
_RUNS = (3, 8)
# Matches not at the border of a token that are skipped.
_MOST_UNALIGNED = 4


class NgramLookup:
    """Predicts the next tokens of one sequence. `source` is the position of the predicted one."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._text = bytearray(array("I", tokens).tobytes())
        self.source: int | None = None
        self._find_source()

    def __len__(self) -> int:
        return len(self._text) // _WIDTH

    def take(self, tokens: Iterable[int]) -> tuple[int, int]:
        """Append tokens. Returns how many were predicted right, and how many predicted."""
        right = predicted = 0
        for token in tokens:
            new = token.to_bytes(_WIDTH, byteorder)
            source = self.source
            hit = source is not None and self._bytes_of(source, 1) == new
            predicted += source is not None
            right += hit
            self._text += new
            if source is not None and hit:
                self.source = source + 1
            else:
                self._find_source()
        return right, predicted

    def skip(self, tokens: Iterable[int]) -> None:
        self._text += array("I", tokens).tobytes()
        self._find_source()

    def draft(self, count: int) -> tuple[int, ...]:
        """Return `count` predicted tokens, repeated past the text's end; fewer before an image."""
        if self.source is None or count <= 0:
            return ()
        period = len(self) - self.source
        tokens = array("I")
        tokens.frombytes(bytes(self._bytes_of(self.source, min(count, period))))
        repeated = tokens.tolist()
        draft = tuple((repeated * -(-count // period))[:count])
        if max(draft) < FIRST_ID:
            return draft
        return draft[: next(at for at, token in enumerate(draft) if token >= FIRST_ID)]

    def _bytes_of(self, first: int, count: int) -> bytearray:
        return self._text[first * _WIDTH : (first + count) * _WIDTH]

    def _find_source(self) -> None:
        self.source = None
        for run in _RUNS:
            newest = bytes(self._text[-run * _WIDTH :])
            start = self._newest_copy_of(newest) if run < len(self) else None
            if start is None:
                return
            self.source = start + run

    def _newest_copy_of(self, run: bytes) -> int | None:
        end = len(self._text) - 1
        for _ in range(_MOST_UNALIGNED):
            at = self._text.rfind(run, 0, end)
            if at < 0 or at % _WIDTH == 0:
                return at // _WIDTH if at >= 0 else None
            end = at + len(run) - 1
        return None
