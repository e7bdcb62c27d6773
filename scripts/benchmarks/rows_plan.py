"""What `scripts/bench rows` measures. Values only."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RowsPlan:
    """`long` and `short` are lengths of rows in tokens. `beside` short rows are with a long one;
    `equal` short rows are by themselves; `agents` rows begin with the same `shared` tokens, which
    are stored. Each round times `steps` decodes of every batch."""

    long: int = 16_000
    short: int = 500
    beside: int = 7
    equal: int = 8
    agents: int = 8
    shared: int = 8_000
    steps: int = 8
    repeats: int = 5


ROWS_QUICK = RowsPlan(long=4_000, short=200, shared=2_000, steps=4, repeats=2)
