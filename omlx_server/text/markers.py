"""Finds markers in text that comes in pieces."""

from collections.abc import Sequence


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
