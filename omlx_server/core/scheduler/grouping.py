"""Groups the chunks of a step that are computed in one forward: last chunks of similar shape,
right-padded. Others, and those with or after images, run alone. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from omlx_server.core.step import Chunk

# Padding may add at most this share of a group's tokens.
_MAX_PADDING = 0.3
# Tokens by which the cached lengths of a group's rows may differ: they are left-padded.
_MAX_START_SPREAD = 256


@dataclass(frozen=True, slots=True)
class Grouping:
    """`batchable`: rows run together. `pads`: they may differ in length, which recurrent state
    forbids. Chunks above `most_tokens` run alone."""

    batchable: bool = True
    pads: bool = True
    most_tokens: int = 256

    def group(self, chunks: Sequence[Chunk]) -> list[tuple[Chunk, ...]]:
        groups: list[tuple[Chunk, ...]] = []
        for chunk in sorted(chunks, key=lambda c: (len(c.joins) != 1, c.start, len(c.tokens))):
            if groups and self._fits(groups[-1], chunk):
                groups[-1] = (*groups[-1], chunk)
            else:
                groups.append((chunk,))
        return groups

    def _fits(self, group: Sequence[Chunk], chunk: Chunk) -> bool:
        if not self.batchable or len(chunk.joins) != 1 or len(group[0].joins) != 1:
            return False
        if not group[0].tokens or not chunk.tokens:
            return False
        if group[0].images or chunk.images or group[0].shift or chunk.shift:
            return False
        members = (*group, chunk)
        starts = [member.start for member in members]
        lengths = [len(member.tokens) for member in members]
        padded = max(lengths) * len(lengths)
        if max(lengths) > self.most_tokens:
            return False
        if not self.pads and min(starts) == 0 < max(starts):
            return False
        close = max(starts) - min(starts) <= _MAX_START_SPREAD
        return close and padded <= (1 + _MAX_PADDING * self.pads) * sum(lengths)
