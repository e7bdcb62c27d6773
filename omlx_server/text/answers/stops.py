"""Matches stop strings in text, across the borders of tokens. Owned by one choice, on the asyncio
thread.

Of several matches the one that ends first wins; of those that end together, the longest. So the
outcome does not depend on how the text was cut into pieces. Invariant: the text held back is the
longest end of the text so far that begins a stop string, and nothing more.
"""

from omlx_server.text.markers import held_length


class StopMatcher:
    """`stopped` is the stop string that ended the text, once one did. With `include` it is shown.
    Raises ValueError for an empty stop string."""

    def __init__(self, stops: tuple[str, ...], include: bool = False) -> None:
        if not all(stops):
            raise ValueError("a stop string can't be empty")
        self._stops = stops
        self._include = include
        self._held = ""
        self.stopped: str | None = None

    def add(self, text: str) -> str:
        """Return what can be shown now. Text after a stop string is dropped."""
        if self.stopped is not None:
            return ""
        text, self._held = self._held + text, ""
        starts = ((text.find(stop), stop) for stop in self._stops)
        ends = [(at + len(stop), -len(stop), stop) for at, stop in starts if at >= 0]
        if ends:
            end, _, self.stopped = min(ends)
            return text[: end if self._include else end - len(self.stopped)]
        shown = len(text) - held_length(text, self._stops)
        self._held = text[shown:]
        return text[:shown]

    def finish(self) -> str:
        """Return and forget what was held back: for the end of the text, or of all that a stop
        string can reach over."""
        held, self._held = self._held, ""
        return held
