"""Answers in channels (gpt-oss): how they are read, and what they must obey."""

import json
import random
from typing import Any

import pytest

from omlx_server.core.request import Constraint
from omlx_server.text.answers.answer import AnswerParser
from omlx_server.text.answers.form import AnswerForm
from omlx_server.text.dialect import shown_ids
from omlx_server.text.grammar.compile import Grammars
from omlx_server.text.grammar.constraint import allows, mask_of
from omlx_server.text.grammar.quoted_lark import quoted_lark
from omlx_server.text.grammar.to_grammar import choice, json_schema
from omlx_server.text.grammar.tools import Function
from omlx_server.text.grammar.vocabulary import Vocabulary
from omlx_server.text.parts import Assembled, Part, assemble
from omlx_server.text.reasoning.channels import ChannelConstraint, channel_grammar
from omlx_server.text.reasoning.style import HARMONY, Opening
from omlx_server.text.tokenizer import Tokenizer
from tests.text.conftest import Load
from tests.text.harmony import ENDS, SCHEMA, SPECIALS, TOOLS, tokenizer_of, written

FUNCTIONS = (Function("f", SCHEMA), Function("get_weather", SCHEMA))


@pytest.fixture(scope="module")
def tokenizer(load: Load) -> Tokenizer:
    return tokenizer_of(load("byte_level"))


@pytest.fixture(scope="module")
def grammars(tokenizer: Tokenizer) -> Any:
    made = Grammars(Vocabulary(tokenizer, tokenizer.vocab_size))
    yield made
    made.close()


def read(tokenizer: Tokenizer, tokens: list[int], *, tools: bool = True) -> Assembled:
    shown = shown_ids(tokenizer, HARMONY.markers)
    form = AnswerForm(style=HARMONY, tools=TOOLS if tools else (), shown=shown)
    answer = AnswerParser(tokenizer, form)
    parts: list[Part] = []
    for token in tokens:
        if token not in tokenizer.eos_ids:
            parts += answer.add(token).parts
    return assemble([*parts, *answer.finish()])


def until_end(tokenizer: Tokenizer, text: str) -> list[int]:
    """The tokens of an answer: the first that ends it is the last."""
    tokens = tokenizer.encode(text)
    ends = [i for i, token in enumerate(tokens) if token in tokenizer.eos_ids]
    return tokens[: ends[0] + 1] if ends else tokens


def calls_of(whole: Assembled) -> list[tuple[str, Any]]:
    return [(call.name, json.loads(call.arguments)) for call in whole.calls]


@pytest.mark.parametrize("part", range(10))
def test_random_answers_mean_what_was_written(tokenizer: Tokenizer, part: int) -> None:
    for seed in range(part * 50, part * 50 + 50):
        answer = written(seed)
        # As where no token ends an answer, so that there is more than one call.
        whole = read_all(tokenizer, answer.text)
        assert (whole.reasoning, whole.text) == (answer.thought, answer.said), answer.text
        expected = [(name, json.loads(arguments)) for name, arguments in answer.calls]
        assert calls_of(whole) == expected, answer.text


def read_all(tokenizer: Tokenizer, text: str) -> Assembled:
    endless = Tokenizer(
        tokenizer._backend, eos_ids=frozenset(), chat_templates={}, template_variables={}
    )
    return read(endless, endless.encode(text))


@pytest.mark.parametrize("tools", [True, False])
def test_wherever_an_answer_is_cut_nothing_leaks(tokenizer: Tokenizer, tools: bool) -> None:
    for seed in range(500):
        tokens = until_end(tokenizer, written(seed).text)
        cut = tokens[: random.Random(seed).randrange(len(tokens) + 1)]
        whole = read(tokenizer, cut, tools=tools)
        assert not any(marker in whole.text + whole.reasoning for marker in SPECIALS)
        assert all(isinstance(arguments, dict) for _, arguments in calls_of(whole))
        assert tools or not whole.calls


def test_without_tools_a_call_is_text(tokenizer: Tokenizer) -> None:
    text = '<|channel|>commentary to=functions.f<|message|>{"a": 1}<|call|>'
    whole = read(tokenizer, tokenizer.encode(text), tools=False)
    assert (whole.text, whole.calls) == ('{"a": 1}', ())


@pytest.mark.parametrize(
    ("body", "text"),
    [("ls -la", "ls -la"), ("[1]", "[1]"), ('{"a": 1} and more', "and more")],
)
def test_what_is_no_object_is_text(tokenizer: Tokenizer, body: str, text: str) -> None:
    header = "<|channel|>commentary to=functions.f<|message|>"
    whole = read(tokenizer, tokenizer.encode(header + body + "<|call|>"))
    assert whole.text == text and len(whole.calls) == body.startswith("{")


def test_a_marker_in_a_value_is_part_of_it(tokenizer: Tokenizer) -> None:
    body = json.dumps({"a": "b<|end|>c<|channel|>final<|message|>d"})
    text = f"<|channel|>commentary to=functions.f<|message|>{body}<|call|>"
    whole = read(tokenizer, tokenizer.encode(text))
    assert calls_of(whole) == [("f", json.loads(body))] and whole.text == ""


@pytest.mark.parametrize(
    "text", ["Yes, it is.", "<|start|>assistant Yes, it is.<|end|>", "Yes, it is." * 200]
)
def test_text_without_a_header_is_not_lost(tokenizer: Tokenizer, text: str) -> None:
    thought = "<|channel|>analysis<|message|>Hm.<|end|>"
    whole = read(tokenizer, tokenizer.encode(thought + text))
    said = text.removeprefix("<|start|>assistant ").removesuffix("<|end|>")
    assert (whole.reasoning, whole.text) == ("Hm.", said)


# -- what answers must obey -----------------------------------------------------------------------


def made(
    grammars: Grammars,
    opening: Opening = Opening.FREE,
    *,
    required: bool = False,
    enforced: bool = True,
    budget: int | None = None,
    functions: tuple[Function, ...] = FUNCTIONS,
    has_format: bool = False,
) -> Constraint:
    spec = channel_grammar(
        functions,
        grammars.vocabulary.special_id,
        opening,
        required=required,
        enforced=enforced,
        has_format=has_format,
        budget=budget,
    )
    return grammars.compile(spec)


def fits(constraint: Constraint, tokenizer: Tokenizer, text: str) -> bool:
    """Whether the constraint allows a text and an end behind it."""
    for token in tokenizer.encode(text):
        if not allows(constraint.mask(), token):
            return False
        constraint.take(token)
    return any(allows(constraint.mask(), end) for end in tokenizer.eos_ids)


THOUGHT = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
PREAMBLE = "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
CALL = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"city": "a", "days": 1}'
FINAL = "<|channel|>final<|message|>Yes."


@pytest.mark.parametrize("before", ["", THOUGHT, PREAMBLE, THOUGHT + PREAMBLE + THOUGHT])
@pytest.mark.parametrize(
    ("last", "fit"),
    [
        (CALL, True),
        (CALL.replace(" <|constrain|>json", ""), True),
        (
            CALL.replace(
                "<|channel|>commentary to=functions.f", " to=functions.f<|channel|>commentary"
            ),
            True,
        ),
        (FINAL, True),
        (CALL.replace("1", "9"), False),
        (CALL.replace("functions.f", "functions.other"), False),
        (CALL.replace("functions.f", "assistant"), False),
        (THOUGHT.removesuffix("<|end|><|start|>assistant"), False),
    ],
)
def test_free_to_call(
    grammars: Grammars, tokenizer: Tokenizer, before: str, last: str, fit: bool
) -> None:
    assert fits(made(grammars), tokenizer, before + last) is fit


@pytest.mark.parametrize(
    ("text", "fit"),
    [(FINAL, True), (PREAMBLE + CALL, True), (PREAMBLE + FINAL, False), (THOUGHT + FINAL, True)],
)
def test_nothing_is_said_before_a_final_text_with_a_format(
    grammars: Grammars, tokenizer: Tokenizer, text: str, fit: bool
) -> None:
    """A client would read both as one text, which is then no JSON."""
    assert fits(made(grammars, has_format=True), tokenizer, text) is fit


def test_a_call_that_must_come(grammars: Grammars, tokenizer: Tokenizer) -> None:
    one = FUNCTIONS[:1]
    for functions, text, fit in [
        (FUNCTIONS, THOUGHT + CALL, True),
        (one, CALL, True),
        (one, CALL.replace("functions.f", "functions.get_weather"), False),
        (one, THOUGHT + FINAL, False),
        (one, PREAMBLE + CALL, False),
    ]:
        constraint = made(grammars, required=True, functions=functions)
        assert fits(constraint, tokenizer, text) is fit, text


def test_the_text_of_a_call_matches_its_grammar(grammars: Grammars, tokenizer: Tokenizer) -> None:
    function = Function("f", strict=True, input=quoted_lark('start: ("a" /\\n/)+'))
    constraint = made(grammars, required=True, functions=(function,))
    for text, matches in (("a\na\n", True), ("a", False)):
        call = CALL.partition("{")[0] + json.dumps({"input": text})
        assert fits(constraint.copy(), tokenizer, call) is matches


def test_the_final_text_obeys_the_answer(grammars: Grammars, tokenizer: Tokenizer) -> None:
    for spec, right in [(choice(["yes", "no"], "x"), "yes"), (json_schema(SCHEMA, "x"), None)]:
        right = right or '{"city": "a", "days": 1}'
        for header in ("<|channel|>final", "<|channel|>final <|constrain|>json"):
            for text, fit in ((right, True), ("maybe", False)):
                framed = made(grammars, functions=())
                constraint = ChannelConstraint(
                    framed, grammars.compile(spec), tokenizer.token_bytes
                )
                answer = f"{THOUGHT}{header}<|message|>{text}"
                assert fits(constraint.copy(), tokenizer, answer) is fit, answer


@pytest.mark.parametrize(
    ("opening", "text", "fit"),
    [
        (Opening.PAST, "es.", True),
        (Opening.PAST, "es.<|end|><|start|>assistant" + CALL, True),
        (Opening.WITHIN, "Hm.<|end|><|start|>assistant" + FINAL, True),
        (Opening.WITHIN, "Hm.", False),
    ],
)
def test_an_answer_that_was_begun(
    grammars: Grammars, tokenizer: Tokenizer, opening: Opening, text: str, fit: bool
) -> None:
    assert fits(made(grammars, opening), tokenizer, text) is fit


@pytest.mark.parametrize("opening", [Opening.FREE, Opening.WITHIN])
@pytest.mark.parametrize("required", [True, False])
@pytest.mark.parametrize("budget", [0, 1, 7])
def test_a_budget_ends_the_only_thought(
    grammars: Grammars, tokenizer: Tokenizer, opening: Opening, required: bool, budget: int
) -> None:
    constraint = made(grammars, opening, required=required, enforced=False, budget=budget)
    header = "<|channel|>analysis<|message|>" if opening is Opening.FREE else ""
    if budget == 0 and header:
        assert not fits(constraint.copy(), tokenizer, header)
        return
    for token in [*tokenizer.encode(header), *tokenizer.encode("x") * budget]:
        assert allows(constraint.mask(), token)
        constraint.take(token)
    [end] = tokenizer.encode("<|end|>")
    assert constraint.mask() == mask_of(tokenizer.vocab_size, [end])
    last = CALL if required else FINAL
    assert fits(constraint.copy(), tokenizer, "<|end|><|start|>assistant" + last)
    assert not fits(constraint, tokenizer, "<|end|><|start|>assistant" + THOUGHT + last)


@pytest.mark.parametrize("seed", range(40))
def test_whatever_is_sampled_is_valid(grammars: Grammars, tokenizer: Tokenizer, seed: int) -> None:
    """A model that has lost its mind, under the mask."""
    chance = random.Random(seed)
    required = seed % 2 == 0
    constraint = made(grammars, required=required, budget=chance.choice((0, 3, 20)))
    tokens: list[int] = []
    likely = [*tokenizer.eos_ids, *tokenizer.encode("<|end|>")]
    for _ in range(400):
        mask = constraint.mask()
        allowed = [token for token in range(tokenizer.vocab_size) if allows(mask, token)]
        ends = [token for token in likely if token in allowed]
        token = chance.choice(ends if ends and chance.random() < 0.2 else allowed)
        tokens.append(token)
        if token in tokenizer.eos_ids:
            break
        constraint.take(token)
    assert constraint.problem is None and tokens[-1] in tokenizer.eos_ids
    whole = read(tokenizer, tokens)
    assert not any(marker in whole.text + whole.reasoning for marker in SPECIALS + ENDS)
    for _, arguments in calls_of(whole):
        assert set(arguments) == {"city", "days"}
    assert len(whole.calls) == 1 if required else len(whole.calls) <= 1
