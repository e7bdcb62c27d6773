"""Which inputs are computed together. Pure; any thread."""

from collections.abc import Sequence

# Padding may take this share of a group's tokens.
_MAX_PADDING = 0.1


def group(lengths: Sequence[int], most_tokens: int) -> list[tuple[int, ...]]:
    """Indices of `lengths` in groups of similar length, each index once, the shortest first.

    A group, padded, has at most `most_tokens`, unless it is of one input.
    """
    groups: list[tuple[int, ...]] = []
    current: list[int] = []
    tokens = 0
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        padded = (len(current) + 1) * lengths[index]
        tokens += lengths[index]
        if current and (padded > most_tokens or padded - tokens > _MAX_PADDING * padded):
            groups.append(tuple(current))
            current, tokens = [], lengths[index]
        current.append(index)
    return [*groups, tuple(current)] if current else groups
