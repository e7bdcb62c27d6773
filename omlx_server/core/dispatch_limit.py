"""The longest work that a device gets at once. A GPU that is shared with a display ends a program
whose command buffer takes seconds (docs/trouble.md). Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from omlx_server.core.chunk_sizes import ALONE_SECONDS, ChunkPace

# The fewest keys that attention reads at once, and the shortest limit, in seconds.
_FEWEST_KEYS = 1024
_SHORTEST = 0.005


@dataclass(frozen=True, slots=True)
class DispatchParts:
    """A forward in parts: `layers` are submitted together. With `keys`, each layer's attention is
    submitted in parts of so many keys."""

    layers: int
    keys: int | None = None


@dataclass(frozen=True, slots=True)
class DispatchLimit:
    """At most `seconds` for what is submitted together, as predicted by `pace`."""

    seconds: float
    pace: ChunkPace

    def halved(self) -> "DispatchLimit":
        return replace(self, seconds=max(_SHORTEST, self.seconds / 2))

    def allows_chunk(self, tokens: int, start: int) -> bool:
        """Return whether each layer of a chunk may be submitted whole. A new request should not
        wait longer than `ALONE_SECONDS` for a chunk."""
        is_short = self.pace.chunk_seconds(tokens, start) <= ALONE_SECONDS
        return is_short and sum(self.layer_seconds([(tokens, start)])) <= self.seconds

    def parts(self, rows: Sequence[tuple[int, int]], correction: float = 1.0) -> DispatchParts:
        """Return the parts of a forward of `rows` (tokens, and cached tokens before them).
        `correction`, measured over predicted seconds, only changes how layers are grouped, which
        changes no result."""
        fixed, attention = self.layer_seconds(rows)
        layer_seconds = fixed + attention
        layers = int(self.seconds / (layer_seconds * correction)) if layer_seconds else math.inf
        if layer_seconds <= self.seconds or not attention:
            return DispatchParts(max(1, min(int(layers), self.pace.layers)))
        longest = max(start + tokens for tokens, start in rows)
        # A layer's other work goes with the first and with the last part of its attention.
        share = max(self.seconds - fixed, self.seconds / 4) / attention
        return DispatchParts(1, max(_FEWEST_KEYS, int(longest * share)))

    def layer_seconds(self, rows: Sequence[tuple[int, int]]) -> tuple[float, float]:
        """Return the seconds of a layer at any depth, and those that its attention adds."""
        fixed = self.pace.fixed_seconds(sum(tokens for tokens, _ in rows))
        return fixed, sum(self.pace.attention_seconds(tokens, start) for tokens, start in rows)
