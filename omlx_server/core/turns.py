"""Whose turn it is: the order of prompts, and when rows go first. Pure; times in seconds.

The order, from the first criterion on: priority class; the key that had least of the machine of
late; the least work that is left, less what was gained by waiting; arrival.
"""

from collections.abc import Sequence

from omlx_server.core.fairness import Fairness
from omlx_server.core.limits import Limits
from omlx_server.core.sequence import Prefill
from omlx_server.core.share import DecodeShare

Owners = Sequence[bytes]


class Turns:
    """Knows for whom the last step worked, and learns with the next one how long it took."""

    def __init__(self, limits: Limits) -> None:
        self._ageing = limits.ageing_tokens_per_second
        self._share = DecodeShare(limits.decode_share)
        self._fairness = Fairness()
        self._rows: Owners = ()
        self._prompts: Owners = ()
        self._begun = 0.0
        self._reading = 0.0

    def begin(self, now: float) -> None:
        """A step is planned. What the last one took, reading aside, went to its rows."""
        if self._rows:
            decoding = now - self._begun - self._reading
            self._share.decoded(decoding)
            self._fairness.give(self._rows, decoding, now)
        self._rows, self._prompts = (), ()
        self._begun, self._reading = now, 0.0

    def planned(self, rows: Owners, prompts: Owners) -> None:
        """For whom the step will work."""
        self._rows, self._prompts = rows, prompts
        if not rows:
            self._share.forgive()

    def read(self, seconds: float) -> None:
        """How long the step took to read prompts."""
        self._reading += seconds
        self._fairness.give(self._prompts, seconds, self._begun)
        if self._rows:
            self._share.read(seconds)

    @property
    def rows_first(self) -> bool:
        """Whether rows are owed time before another prompt is read."""
        return self._share.is_owed

    def order(self, prefill: Prefill, now: float) -> tuple[int, float, float, int]:
        """Sort key of a prompt."""
        request = prefill.request
        waited = max(0.0, now - request.arrived)
        aged = prefill.remaining - waited * self._ageing
        return request.priority, self._fairness.used(request.owner, now), aged, prefill.order
