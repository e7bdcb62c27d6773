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
    """The rules by which a model's chunks share a forward."""

    batchable: bool = True  # rows run together
    pads: bool = True  # they may differ in length, which recurrent state forbids
    most_tokens: int = 256  # longer chunks run alone

    def group(self, chunks: Sequence[Chunk]) -> list[tuple[Chunk, ...]]:
        groups: list[tuple[Chunk, ...]] = []
        for chunk in sorted(chunks, key=lambda c: (len(c.joins) != 1, c.start, len(c.tokens))):
            if groups and self._may_join(groups[-1], chunk):
                groups[-1] = (*groups[-1], chunk)
            else:
                groups.append((chunk,))
        return groups

    def _may_join(self, group: Sequence[Chunk], chunk: Chunk) -> bool:
        if not self.batchable or len(chunk.joins) != 1 or len(group[0].joins) != 1:
            return False
        if not group[0].tokens or not chunk.tokens:
            return False
        if group[0].images or chunk.images or group[0].shift or chunk.shift:
            return False
        starts = [member.start for member in (*group, chunk)]
        lengths = [len(member.tokens) for member in (*group, chunk)]
        padded_tokens = max(lengths) * len(lengths)
        if max(lengths) > self.most_tokens:
            return False
        if not self.pads and min(starts) == 0 < max(starts):
            return False
        start_close = max(starts) - min(starts) <= _MAX_START_SPREAD
        most_padded = (1 + _MAX_PADDING * self.pads) * sum(lengths)
        return start_close and padded_tokens <= most_padded
