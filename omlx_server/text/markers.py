"""Finds markers in text that comes in pieces. Pure.

What is found must not depend on how the text was cut, so an end of the text that may yet become a
marker is held back.
"""

from collections.abc import Sequence


def earliest(text: str, markers: Sequence[str], start: int = 0) -> tuple[int, str] | None:
    """Position and text of the first marker at or after `start`; of two there, the longer one. None
    where there is no marker."""
    found = [(position, -len(m), m) for m in markers if (position := text.find(m, start)) >= 0]
    if not found:
        return None
    position, _, marker = min(found)
    return position, marker


def held_length(text: str, markers: Sequence[str]) -> int:
    """Length of the longest end of `text` that is the beginning, not the whole, of a marker."""
    longest = max((len(marker) for marker in markers), default=0) - 1
    for length in range(min(longest, len(text)), 0, -1):
        end = text[len(text) - length :]
        if any(len(marker) > length and marker.startswith(end) for marker in markers):
            return length
    return 0


def at(text: str, position: int, markers: Sequence[str]) -> str | None:
    """The marker that stands at `position`; "" when the text ends within what may be one, else
    None."""
    for marker in markers:
        if text.startswith(marker, position):
            return marker
    room = len(text) - position
    for marker in markers:
        if room < len(marker) and marker.startswith(text[position:]):
            return ""
    return None
