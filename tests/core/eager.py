"""Speculation that always bets, whatever it costs: so that tests meet as many drafts as can be."""

from collections.abc import Sequence

from omlx_server.core.speculation.depth import Offer, StepCosts
from omlx_server.core.speculation.speculation import Speculation


class Eager(Speculation):
    """Drafts as many tokens as the rows have."""

    def __init__(self) -> None:
        super().__init__(StepCosts([(1, 1.0), (64, 1.0)]))

    def depth(self, offers: Sequence[Offer], most: int) -> int:
        return min(most, max((len(offer.chances) for offer in offers), default=0))
