"""The time that the grammar of one answer may take. Owned by one thread at a time.

Seconds are those of a processor, so that a busy machine ends no answer. There is something to start
with, for a row of a grammar that is new to the engine; each token adds a little, as honest grammars
need a tenth of it on average.
"""

from dataclasses import dataclass

SECONDS = 0.1
SECONDS_PER_TOKEN = 0.002


@dataclass(slots=True)
class Budget:
    """`left` seconds for what comes next; never more than SECONDS. `tokens` were paid for."""

    left: float = SECONDS
    tokens: int = 0

    @property
    def empty(self) -> bool:
        return self.left <= 0

    def earn(self, tokens: int) -> None:
        """These many tokens came."""
        self.tokens += tokens
        if not self.empty:
            self.left = min(SECONDS, self.left + tokens * SECONDS_PER_TOKEN)

    def spend(self, seconds: float) -> None:
        self.left -= seconds

    def copy(self) -> "Budget":
        return Budget(self.left, self.tokens)
