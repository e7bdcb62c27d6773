"""Where the tokens of planned cuts are. Pure."""

from collections import deque
from collections.abc import Iterable

from omlx_server.core.scheduler.sequence import TokenSource
from omlx_server.core.step import Cut


class CutSources:
    """The sources of planned cuts, until their steps are done: a step is done before the second
    one after it is planned."""

    def __init__(self) -> None:
        self._steps = deque[dict[int, TokenSource]]([{}], maxlen=3)

    def note(self, cuts: Iterable[Cut], source: TokenSource) -> None:
        self._steps[-1].update({cut.number: source for cut in cuts})

    def end_step(self) -> None:
        """Later cuts belong to the next step. Steps without cuts need no call."""
        self._steps.append({})

    def take(self, cut: Cut) -> TokenSource:
        """Raises KeyError for a cut that was not noted."""
        step = next((step for step in self._steps if cut.number in step), {})
        return step.pop(cut.number)
