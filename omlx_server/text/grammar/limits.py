"""Limits on the work of one grammar.

The engine's fuel bounds neither a row of the parser nor an intersection of patterns, so only
grammars small in both (`bounds.py`) run in the server.
"""

from llguidance import LLParserLimits

# The most symbols of a grammar that is run in the server: more of them where few alternatives can
# be open at once, since a row of the parser has few items then.
MOST_SYMBOLS = 10_000
MOST_SYMBOLS_AMBIGUOUS = 500
# An answer's budget of processor time: so much, and so much more for each token.
SECONDS = 0.1
SECONDS_PER_TOKEN = 0.002


def engine_limits(symbols: int | None = None) -> LLParserLimits:
    """`symbols`: the most of a grammar; None for the engine's own limit."""
    return LLParserLimits(
        step_lexer_fuel=100_000,
        step_max_items=25_000,
        max_lexer_states=25_000,
        verbose_errors=False,
        max_grammar_size=symbols,
    )
