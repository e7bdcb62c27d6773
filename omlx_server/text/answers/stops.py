"""Stop strings, matched on text over token borders. Owned by one choice, on the asyncio thread.

Of several matches the one that ends first wins; of those that end together, the longest. So the
outcome does not depend on how the text was cut into pieces. Invariant: the text held back is the
longest end of the text so far that begins a stop string, and nothing more.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StopResult:
    """`text` may be shown. `stopped` is the stop string that ended the text, if one did."""

    text: str
    stopped: str | None = None


class StopMatcher:
    def __init__(self, stops: tuple[str, ...], include: bool = False) -> None:
        if not all(stops):
            raise ValueError("a stop string can't be empty")
        self._progress = [_Progress(stop) for stop in stops]
        self._include = include
        self._held = ""
        self._stopped = False

    def add(self, text: str) -> StopResult:
        """Text after a stop is dropped."""
        if self._stopped:
            return StopResult("")
        if not self._progress:
            return StopResult(text)
        known = len(self._held)
        text = self._held + text
        for position in range(known, len(text)):
            stop = self._advance(text[position])
            if stop is not None:
                self._stopped, self._held = True, ""
                end = position + 1
                return StopResult(text[: end if self._include else end - len(stop)], stop)
        held = max(progress.matched for progress in self._progress)
        self._held = text[len(text) - held :]
        return StopResult(text[: len(text) - held])

    def finish(self) -> str:
        """What was held back, when no more text comes."""
        held, self._held = self._held, ""
        return held

    def _advance(self, char: str) -> str | None:
        """The longest stop string that `char` completes."""
        done = [progress.stop for progress in self._progress if progress.advance(char)]
        return max(done, key=len) if done else None


class _Progress:
    """How much of one stop string the text ends with (Knuth, Morris and Pratt)."""

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.matched = 0
        self._borders = _borders(stop)

    def advance(self, char: str) -> bool:
        """True when `char` completes the stop string."""
        while self.matched and self.stop[self.matched] != char:
            self.matched = self._borders[self.matched - 1]
        if self.stop[self.matched] == char:
            self.matched += 1
        return self.matched == len(self.stop)


def _borders(stop: str) -> list[int]:
    """For each prefix, the length of its longest proper prefix that is also its end."""
    borders = [0] * len(stop)
    length = 0
    for position in range(1, len(stop)):
        while length and stop[position] != stop[length]:
            length = borders[length - 1]
        if stop[position] == stop[length]:
            length += 1
        borders[position] = length
    return borders
