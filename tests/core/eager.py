"""Speculation that always bets, whatever it costs: so that tests meet as many drafts as can be."""

from collections.abc import Sequence

from omlx_server.core.speculation.depth import Bet, Offer, StepCosts
from omlx_server.core.speculation.methods import Method
from omlx_server.core.speculation.speculation import DraftController, DrafterRecord


class Eager(DraftController):
    """Drafts as many tokens as the rows have."""

    def __init__(self, drafter: Method | None = None) -> None:
        """`drafter`: how the model's drafter drafts, if it has one."""
        costs = StepCosts([(1, 1.0), (64, 1.0)])
        super().__init__(costs, DrafterRecord(drafter, costs) if drafter else None)

    def bet(self, offers: Sequence[Offer], most: int, *, with_drafter: bool = False) -> Bet:
        longest = max((len(offer.chances) for offer in offers), default=0)
        return Bet(min(most, longest), 1.0 + with_drafter)
