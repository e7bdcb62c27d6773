"""Searches large texts in slices, since a search holds the GIL until it ends, and finds markers
that have begun.

`reach`: the most characters from the beginning of a match that decide about it.
"""

import re
import sys
from collections.abc import Callable, Iterator, Sequence

# Characters: a tenth of a millisecond. A thread that is nice may lose its processor in a search.
_SLICE_CHARS = 1 << 12

Match = re.Match[str]
Pattern = re.Pattern[str]


def replace_all(pattern: Pattern, replace: Callable[[Match], str], text: str, *, reach: int) -> str:
    """Return what `pattern.sub` gives, for a pattern that never matches the empty text."""
    parts: list[str] = []
    position = 0
    for match in find_all(pattern, text, 0, reach=reach):
        parts += (text[position : match.start()], replace(match))
        position = match.end()
    return "".join([*parts, text[position:]]) if parts else text


def find_all(
    pattern: Pattern, text: str, start: int, *, reach: int, stop: int = sys.maxsize
) -> Iterator[Match]:
    """Yield the matches that begin in [start, stop) and do not overlap."""
    stop = min(stop, len(text) + 1)
    for begin in range(start, stop, _SLICE_CHARS):
        end = min(begin + _SLICE_CHARS, stop)
        for match in pattern.finditer(text, max(start, begin), end + reach):
            if match.start() >= end:
                break
            yield match
            start = match.end()


def without_surrogates(text: str) -> str:
    """Return `text` with "?" for each lone surrogate, which JSON can spell."""
    return text.encode(errors="replace").decode()


def begun_marker_length(text: str, markers: Sequence[str]) -> int:
    """Return the length of the longest end of `text` that begins a marker, but is not a whole
    one."""
    longest = max((len(marker) for marker in markers), default=0) - 1
    for length in range(min(longest, len(text)), 0, -1):
        end = text[len(text) - length :]
        if any(len(marker) > length and marker.startswith(end) for marker in markers):
            return length
    return 0


def marker_at(text: str, position: int, markers: Sequence[str]) -> str | None:
    """Return the marker at `position`; "" when the text may end within one, else None."""
    for marker in markers:
        if text.startswith(marker, position):
            return marker
    room = len(text) - position
    for marker in markers:
        if room < len(marker) and marker.startswith(text[position:]):
            return ""
    return None
