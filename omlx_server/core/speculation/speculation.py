"""How much one model bets on drafts, and what came of it. Pure; owned by its instance."""

from collections.abc import Sequence

from omlx_server.core.speculation.account import Account
from omlx_server.core.speculation.counts import DraftCounts
from omlx_server.core.speculation.depth import Offer, StepCosts, best_depth


class Speculation:
    """The bets of one model: `costs` say what a wider step takes, the account what may be lost."""

    def __init__(self, costs: StepCosts) -> None:
        self._costs = costs
        self._account = Account()
        self.counts = DraftCounts()

    def depth(self, offers: Sequence[Offer], most: int) -> int:
        """How many tokens each row may draft at most; 0 where a plain step is better. `offers` has
        all rows of the batch."""
        plain = self._costs.seconds(len(offers), verifies=False)
        return best_depth(offers, self._costs, most, self._account.most_seconds(plain))

    def failed(self) -> None:
        """Note that a step that verified drafts has failed: there are none for a while."""
        self._account.failed()

    def stepped(self, rows: int, seconds: float) -> None:
        """Note that a plain decode of so many rows took `seconds`."""
        self._costs.took(rows, seconds, verifies=False)
        self._account.stepped()

    def verified(self, rows: int, places: int, seconds: float, accepted: int) -> None:
        """Note that a decode of so many rows and places took `seconds`, and how many drafted tokens
        were right."""
        self._costs.took(places, seconds, verifies=True)
        plain = self._costs.seconds(rows, verifies=False)
        self._account.verified(seconds, plain, rows, rows + accepted)
