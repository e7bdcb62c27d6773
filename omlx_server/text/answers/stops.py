"""Matches stop strings in text, across the borders of tokens. The match that ends first wins,
then the longest."""

from omlx_server.text.markers import begun_marker_length


class StopMatcher:
    """`stopped`: the stop string that ended the text, shown with `include`. Raises ValueError
    for an empty stop string."""

    def __init__(self, stops: tuple[str, ...], include: bool = False) -> None:
        if not all(stops):
            raise ValueError("a stop string can't be empty")
        self._stops = stops
        self._include = include
        self._held = ""
        self.stopped: str | None = None

    def add(self, text: str) -> str:
        """Return the text that can be shown now."""
        if self.stopped is not None:
            return ""
        text, self._held = self._held + text, ""
        starts = ((text.find(stop), stop) for stop in self._stops)
        matches = [(start + len(stop), -len(stop), stop) for start, stop in starts if start >= 0]
        if matches:
            end, _, self.stopped = min(matches)
            return text[: end if self._include else end - len(self.stopped)]
        shown = len(text) - begun_marker_length(text, self._stops)
        self._held = text[shown:]
        return text[:shown]

    def finish(self) -> str:
        text, self._held = self._held, ""
        return text
