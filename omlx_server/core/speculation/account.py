"""What speculation has cost and gained. It may lose a small part of the time, as far as estimates
hold. Pure.

Drafts are a bet: a step that verifies takes longer, and only right tokens make up for it. The stake
comes from an account: each step pays a small share of its time in, gains pay in too, and a bet is
made only when the account covers its loss. So, however wrong the drafts, the rows lose no more than
that share and what the account had at first.
"""

_SHARE = 0.01
# In plain steps: what the account has at first; at most, since gains of long ago are no reason to
# lose much now; and at least -_FIRST: what a step that was held up has lost beyond that is
# forgiven.
_FIRST = 1.5
_MOST = 8.0


class DraftBalance:
    """The balance, in the time of plain steps."""

    def __init__(self) -> None:
        self._balance = _FIRST

    def most_seconds(self, plain: float) -> float:
        """How long a step that verifies may take where a plain one takes `plain` seconds, though
        all of its drafts may be wrong."""
        return plain * (1 + self._balance)

    def stepped(self) -> None:
        """Note a plain step."""
        self._pay(_SHARE)

    def failed(self) -> None:
        """Note a step that failed: nothing is bet for a while."""
        self._balance = -_MOST

    def verified(self, verify: float, plain: float, rows: int, tokens: int) -> None:
        """Note a step that took `verify` seconds and gave so many `tokens` to `rows` rows, all
        together."""
        steps = tokens / rows  # of plain ones, that would have given as many
        self._pay(steps - verify / plain + _SHARE)

    def _pay(self, steps: float) -> None:
        least = min(self._balance, -_FIRST)
        self._balance = max(least, min(_MOST, self._balance + steps))
