"""How much work one grammar may be to the engine. The same in a trial and in use."""

from typing import TypedDict

from llguidance import LLParserLimits


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


def engine_limits(limits: Limits = LIMITS) -> LLParserLimits:
    return LLParserLimits(**limits)
