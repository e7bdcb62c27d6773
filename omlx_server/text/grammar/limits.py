"""How much work one grammar may be to the engine. The same in a trial and in use.

The engine's fuel bounds a step only where a step is made of many small parts. Two things are one
part to it, however large: the items of one row of the parser, which grow with the cube of the
alternatives that are open at once, and an intersection of patterns. So only grammars that are small
in both (`bounds.py`) are run in the server; the others run in a process of their own (`apart.py`).
"""

from typing import TypedDict

from llguidance import LLParserLimits

# Symbols of a grammar that is run in the server. With few alternatives a row has few items.
MOST_SYMBOLS = 10_000
MOST_SYMBOLS_AMBIGUOUS = 500


class Limits(TypedDict):
    step_lexer_fuel: int
    step_max_items: int
    max_lexer_states: int
    verbose_errors: bool


# Half of the engine's own limits on a step, and a tenth of its lexer states: a state is 1 to 2 kB,
# and those of a cached grammar stay.
LIMITS: Limits = {
    "step_lexer_fuel": 100_000,
    "step_max_items": 25_000,
    "max_lexer_states": 25_000,
    "verbose_errors": False,
}


def engine_limits(limits: Limits = LIMITS, symbols: int | None = None) -> LLParserLimits:
    """`symbols`: the most that a grammar may have; None for the engine's own limit."""
    return LLParserLimits(**limits, max_grammar_size=symbols)
