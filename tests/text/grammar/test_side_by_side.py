"""Answers of one grammar that go on side by side, as the rows of a batch do."""

import random
from functools import partial

import pytest

from omlx_server.compute.sampling.logits import side_by_side
from omlx_server.core.request import Constraint
from omlx_server.text.grammar import to_grammar
from omlx_server.text.grammar.compile import Grammars
from omlx_server.text.grammar.to_grammar import GrammarSpec
from tests.text.grammar.walks import Words, allowed

Told = tuple[bool, str | None, list[int]]
PATTERN = "[a-c]{1,3}(, [a-c]{1,3}){2,9}"
SPECS = {
    "a schema": to_grammar.json_schema({"type": "array", "items": {"type": "number"}}, "schema"),
    "a pattern": to_grammar.regex(PATTERN, "pattern"),
    "in a process of its own": to_grammar.grammar(f"start: /{PATTERN}/", "grammar"),
}


def told(constraint: Constraint, token: int) -> Told:
    """What a constraint says once it has been told a token."""
    constraint.take(token)
    return constraint.done, constraint.problem, [*constraint.forced()]


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_answers_side_by_side_are_told_what_they_are_one_by_one(
    tiny: Grammars, spec: GrammarSpec
) -> None:
    chance, first = random.Random(1), tiny.compile(spec)
    beside, alone = [[first.copy() for _ in range(8)] for _ in range(2)]
    for _ in range(25):
        going = [at for at, own in enumerate(alone) if not own.done]
        chosen = {at: chance.choice(allowed(alone[at])) for at in going}
        found = side_by_side([partial(told, beside[at], token) for at, token in chosen.items()])
        assert found == [told(alone[at], token) for at, token in chosen.items()]
        assert [own.mask() for own in beside] == [own.mask() for own in alone]


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_a_wrong_token_is_a_problem_of_its_own_answer(
    tiny: Grammars, tiny_words: Words, spec: GrammarSpec
) -> None:
    answers = [tiny.compile(spec) for _ in range(4)]
    right = allowed(answers[0])[0]
    [wrong] = tiny_words.spell("!")
    found = side_by_side(
        [partial(told, own, wrong if at == 2 else right) for at, own in enumerate(answers)]
    )
    assert [problem is not None for _, problem, _ in found] == [False, False, True, False]
