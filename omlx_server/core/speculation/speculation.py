"""Decides how much one model drafts, and learns from the results. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from omlx_server.core.speculation.depth import Bet, Chance, Offer, StepCosts, best_depth
from omlx_server.core.speculation.methods import DraftCounts, Method

# The chance of an untried drafter: only drafts show what they are worth.
_FIRST_CHANCE = 0.8
# The weight of other rows for a new one, in tokens.
_OTHERS_WEIGHT = 12
# The part of a plain step that each step pays in.
_INCOME = 0.01
# Plain steps: the first balance, and the highest. A loss below -_FIRST_BALANCE is forgiven.
_FIRST_BALANCE = 1.5
_HIGHEST_BALANCE = 8.0


class DraftBalance:
    """The balance of what speculation costs and gains, in plain steps. Each step and each gain pays
    in; a draft is tried only when the balance covers its loss."""

    def __init__(self) -> None:
        self._balance = _FIRST_BALANCE

    def most_seconds(self, plain: float) -> float:
        """Return the longest affordable verifying step."""
        return plain * (1 + self._balance)

    def note_plain_step(self) -> None:
        self._pay(_INCOME)

    def note_failure(self) -> None:
        self._balance = -_HIGHEST_BALANCE

    def note_verified_step(self, verify: float, plain: float, rows: int, tokens: int) -> None:
        steps = tokens / rows  # plain ones that give as many tokens
        self._pay(steps - verify / plain + _INCOME)

    def _pay(self, steps: float) -> None:
        least = min(self._balance, -_FIRST_BALANCE)  # lower only after a failure
        self._balance = max(least, min(_HIGHEST_BALANCE, self._balance + steps))


@dataclass(frozen=True, slots=True)
class DrafterRecord:
    """Measured speed and accuracy of a drafter, which drafts a token of each row in one forward."""

    method: Method
    costs: StepCosts
    chance: Chance = field(default_factory=lambda: Chance(_FIRST_CHANCE))

    def new_chance(self) -> Chance:
        chance = Chance(_FIRST_CHANCE)
        chance.learn(_OTHERS_WEIGHT * self.chance.value, _OTHERS_WEIGHT)
        return chance

    def forget(self) -> None:
        self.chance.forget()
        self.costs.forget()

    def seconds(self, rows: int) -> float:
        return self.costs.seconds(rows, verifies=False)


class DraftController:
    """Decides on one model's drafts from its step `costs` and draft balance."""

    def __init__(self, costs: StepCosts, drafter: DrafterRecord | None = None) -> None:
        self._costs = costs
        self.drafter = drafter
        self._budget = DraftBalance()
        self.counts = DraftCounts()

    def bet(self, offers: Sequence[Offer], most: int, *, with_drafter: bool = False) -> Bet:
        """Return how many tokens each row may draft. `offers` has all rows."""
        rows = len(offers)
        plain = self._costs.seconds(rows, verifies=False)
        drafting = self.drafter.seconds(rows) if with_drafter and self.drafter else 0.0
        allowed = self._budget.most_seconds(plain)
        return best_depth(offers, self._costs, most, allowed, drafting)

    def note_failure(self) -> None:
        self._budget.note_failure()

    def note_plain_step(self, rows: int, seconds: float | None) -> None:
        if self.drafter is not None:
            self.drafter.forget()
        if seconds is not None:
            self._costs.note_step(rows, seconds, verifies=False)
        self._budget.note_plain_step()

    def note_drafting(self, rows: int, forwards: int, seconds: float) -> None:
        if self.drafter is not None:
            self.drafter.costs.note_step(rows, seconds / forwards, verifies=False)

    def note_verified_step(
        self, rows: int, places: int, seconds: float | None, accepted: int, drafting: float = 0.0
    ) -> None:
        if seconds is None:
            seconds = self._costs.seconds(places, verifies=True)
        else:
            self._costs.note_step(places, seconds, verifies=True)
        plain = self._costs.seconds(rows, verifies=False)
        self._budget.note_verified_step(drafting + seconds, plain, rows, rows + accepted)
