"""What a forward in parts takes, as predicted."""

from collections.abc import Sequence

from omlx_server.core.dispatch_limit import DispatchLimit


def longest_seconds(limit: DispatchLimit, rows: Sequence[tuple[int, int]]) -> float:
    """Return the predicted seconds of the longest part of a forward."""
    parts, (fixed, attention) = limit.parts(rows), limit.layer_seconds(rows)
    if parts.keys is None:
        return parts.layers * (fixed + attention)
    longest = max(start + tokens for tokens, start in rows)
    return fixed + attention * min(1.0, parts.keys / longest)
