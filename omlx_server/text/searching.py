"""Regular expressions over large texts, in slices: a search holds the GIL until it ends, and one
over megabytes would keep every other thread waiting. Pure; any thread.

`reach` is the most characters around the place where a match begins that decide about it.
"""

import re
from collections.abc import Callable, Iterator

_SLICE = 1 << 16

Found = re.Match[str]


def first(pattern: re.Pattern[str], text: str, start: int, *, reach: int) -> Found | None:
    """The leftmost match that begins at `start` or later."""
    for begin in range(start, len(text) + 1, _SLICE):
        end = begin + _SLICE
        found = pattern.search(text, begin, end + reach)
        if found is not None and (found.start() < end or end >= len(text)):
            return found
    return None


def replaced(
    pattern: re.Pattern[str], replace: Callable[[Found], str], text: str, *, reach: int
) -> str:
    """As `pattern.sub`, for a pattern that never matches the empty text."""
    parts: list[str] = []
    position = 0
    for found in _all(pattern, text, reach):
        parts += (text[position : found.start()], replace(found))
        position = found.end()
    return "".join([*parts, text[position:]]) if parts else text


def _all(pattern: re.Pattern[str], text: str, reach: int) -> Iterator[Found]:
    found = first(pattern, text, 0, reach=reach)
    while found is not None:
        yield found
        found = first(pattern, text, found.end(), reach=reach)
