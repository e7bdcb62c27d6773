"""The time that the grammar of one answer may take. Owned by one thread at a time.

Seconds are those of a processor, so that a busy machine ends no answer. An answer begins with
SECONDS, for what a grammar needs when the engine first sees it; each token adds SECONDS_PER_TOKEN,
of which honest grammars need a tenth on average.
"""

from dataclasses import dataclass

SECONDS = 0.1
SECONDS_PER_TOKEN = 0.002


@dataclass(slots=True)
class GrammarBudget:
    """`left`: seconds of a processor that can still be spent, never more than SECONDS. `tokens`:
    how many tokens came."""

    left: float = SECONDS
    tokens: int = 0

    @property
    def empty(self) -> bool:
        return self.left <= 0

    def earn(self, tokens: int) -> None:
        """Note that `tokens` more tokens came, and add their seconds. An empty budget stays
        empty."""
        self.tokens += tokens
        if not self.empty:
            self.left = min(SECONDS, self.left + tokens * SECONDS_PER_TOKEN)

    def spend(self, seconds: float) -> None:
        self.left -= seconds

    def copy(self) -> "GrammarBudget":
        return GrammarBudget(self.left, self.tokens)
