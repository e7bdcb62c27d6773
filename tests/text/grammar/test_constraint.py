"""One answer's state: masks, forced tokens, the end, copies, replay, problems."""

import random
import threading

import pytest

from omlx_server.core.request import Constraint
from omlx_server.text.grammar import to_grammar
from omlx_server.text.grammar.compile import Grammars
from tests.text.grammar.walks import Words, allowed, walked

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "ok": {"type": "boolean"}},
    "required": ["name", "ok"],
    "additionalProperties": False,
}


@pytest.fixture
def person(grammars: Grammars) -> Constraint:
    return grammars.compile(to_grammar.json_schema(PERSON, "schema"))


def test_a_mask_is_a_bit_per_logit(person: Constraint, starter_words: Words) -> None:
    assert len(person.mask()) == 49_152 // 8
    brace = starter_words.spell("{")[0]
    assert person.mask()[brace // 8] >> brace % 8 & 1
    assert brace in allowed(person)


def test_a_token_outside_the_mask_is_a_problem_and_then_only_the_end_comes(
    person: Constraint, starter_words: Words
) -> None:
    before = person.copy()
    wrong = starter_words.spell("x")[0]
    assert wrong not in allowed(person)
    person.take(wrong)
    assert person.problem == f"token {wrong} does not fit the grammar"
    assert person.forced() == []
    assert allowed(person) == starter_words.vocabulary.eos_ids
    person.take(starter_words.spell("{")[0])
    assert person.problem is not None
    assert before.problem is None


@pytest.mark.parametrize("token", [-1, 49_152, 1 << 40])
def test_a_token_that_is_none_is_a_problem(
    person: Constraint, starter_words: Words, token: int
) -> None:
    person.take(token)
    assert allowed(person) == starter_words.vocabulary.eos_ids
    assert person.problem == f"token {token} is not in the vocabulary"


def test_what_is_taken_is_exactly_what_the_mask_allows(tiny: Grammars, tiny_words: Words) -> None:
    constraint = tiny.compile(to_grammar.regex("(ab|[0-9]+)c?", "regex"))
    for prefix in ("", "a", "1", "12", "ab", "abc"):
        state = constraint.copy()
        for token in tiny_words.spell(prefix):
            state.take(token)
        fits = []
        for token in range(tiny_words.vocabulary.size):
            trial = state.copy()
            trial.take(token)
            fits += [token] if trial.problem is None else []
        # A forced token can be spelled in other ways; the mask insists on the model's own.
        assert set(allowed(state)) <= set(fits)
        if not state.forced():
            assert allowed(state) == fits, prefix


def test_forced_tokens_are_those_that_a_mask_of_one_allows(
    person: Constraint, starter_words: Words
) -> None:
    ends = starter_words.vocabulary.eos_ids
    forced_seen = 0
    for seed in range(5):
        state = person.copy()
        for token in walked(person.copy(), starter_words, seed):
            forced, choices = state.forced(), allowed(state)
            assert bool(forced) == (len(choices) == 1 and choices[0] not in ends)
            assert not forced or choices == forced[:1]
            ahead = state.copy()
            for token_ahead in forced:
                assert allowed(ahead) == [token_ahead]
                ahead.take(token_ahead)
            forced_seen += bool(forced)
            state.take(token)
    assert forced_seen >= 10


def test_fixed_text_is_forced_at_once_as_the_model_would_spell_it(
    grammars: Grammars, starter_words: Words
) -> None:
    constraint = grammars.compile(to_grammar.choice(["The quick brown fox."], "choice"))
    assert constraint.forced() == starter_words.spell("The quick brown fox.")


def test_a_mask_of_one_is_forced_also_where_the_grammar_leaves_the_spelling_free(
    tiny: Grammars, tiny_words: Words
) -> None:
    text = '%llguidance {"no_forcing": true}\nstart: "Q" "Z"?'
    constraint = tiny.compile(to_grammar.grammar(text, "grammar"))
    assert constraint.forced() == tiny_words.spell("Q")
    constraint.take(tiny_words.spell("Q")[0])
    assert constraint.forced() == []


def test_the_end_is_allowed_exactly_where_the_grammar_may_end(
    tiny: Grammars, tiny_words: Words
) -> None:
    constraint = tiny.compile(to_grammar.regex("a|aba", "regex"))
    ends = set(tiny_words.vocabulary.eos_ids)
    seen = []
    for token in tiny_words.spell("a") + tiny_words.spell("b") + tiny_words.spell("a"):
        seen.append((bool(ends & set(allowed(constraint))), constraint.done))
        constraint.take(token)
    seen.append((bool(ends & set(allowed(constraint))), constraint.done))
    assert seen == [(False, False), (True, False), (False, False), (True, True)]
    assert allowed(constraint) == sorted(ends)
    constraint.take(min(ends))
    assert constraint.problem is None
    assert constraint.done


def test_a_grammar_of_nothing_is_done_at_once(tiny: Grammars, tiny_words: Words) -> None:
    constraint = tiny.compile(to_grammar.choice([""], "choice"))
    assert constraint.done
    assert allowed(constraint) == tiny_words.vocabulary.eos_ids


def test_every_end_token_of_the_model_ends(grammars: Grammars, starter_words: Words) -> None:
    assert len(starter_words.vocabulary.eos_ids) == 2
    for end in starter_words.vocabulary.eos_ids:
        constraint = grammars.compile(to_grammar.choice(["ja", "ja!"], "choice"))
        constraint.take(starter_words.spell("ja")[0])
        constraint.take(end)
        assert constraint.problem is None
        assert constraint.done


def test_copies_are_independent(person: Constraint, starter_words: Words) -> None:
    tokens = walked(person.copy(), starter_words, 5)
    states = [person.copy()]
    for token in tokens[:-1]:
        states.append(states[-1].copy())
        states[-1].take(token)
    masks = [state.copy().mask() for state in states]
    chance = random.Random(1)
    for state in states:
        other = state.copy()
        other.take(chance.choice(allowed(other)))
    assert [state.mask() for state in states] == masks


def test_taking_the_same_tokens_again_gives_the_same_masks(
    person: Constraint, starter_words: Words
) -> None:
    tokens = walked(person.copy(), starter_words, 6)
    first, second = person.copy(), person.copy()
    for token in tokens[: len(tokens) // 2]:
        second.take(token)  # without asking for masks, as after a preemption
    for i, token in enumerate(tokens):
        if i >= len(tokens) // 2:
            assert first.mask() == second.mask()
            assert first.forced() == second.forced()
            second.take(token)
        first.take(token)
    assert first.done
    assert second.done


def test_a_state_moves_from_thread_to_thread(person: Constraint, starter_words: Words) -> None:
    expected = walked(person.copy(), starter_words, 7)
    found: list[list[int]] = []
    thread = threading.Thread(target=lambda: found.append(walked(person, starter_words, 7)))
    thread.start()
    thread.join()
    assert found == [expected]


def test_a_limit_of_the_engine_is_a_problem_not_an_exception(
    tiny: Grammars, tiny_words: Words
) -> None:
    """Right recursion: each item costs one more, which a trial of some steps can't see."""
    recursive = " | ".join(f'"x" a "{i}"?' for i in range(8)) + ' | "x"'
    constraint = tiny.compile(to_grammar.grammar("start: a\na: " + recursive, "grammar"))
    token = tiny_words.spell("x")[0]
    steps = 0
    while constraint.problem is None and steps < 5000:
        constraint.take(token)
        steps += 1
    assert constraint.problem is not None
    assert "\n" not in constraint.problem
    assert "too expensive at token" in constraint.problem and constraint.too_costly
    assert allowed(constraint) == tiny_words.vocabulary.eos_ids
