"""The processor time of one answer's grammar: SECONDS, and SECONDS_PER_TOKEN for each token.
Owned by one thread at a time."""

from dataclasses import dataclass

SECONDS = 0.1
SECONDS_PER_TOKEN = 0.002


@dataclass(slots=True)
class GrammarBudget:
    """`left`: seconds that can still be spent, at most SECONDS."""

    left: float = SECONDS
    tokens: int = 0

    @property
    def empty(self) -> bool:
        return self.left <= 0

    def earn(self, tokens: int) -> None:
        """Add the seconds of `tokens` more tokens. An empty budget stays empty."""
        self.tokens += tokens
        if not self.empty:
            self.left = min(SECONDS, self.left + tokens * SECONDS_PER_TOKEN)

    def spend(self, seconds: float) -> None:
        self.left -= seconds

    def copy(self) -> "GrammarBudget":
        return GrammarBudget(self.left, self.tokens)
