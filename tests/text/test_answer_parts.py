"""An answer with thoughts, calls and stop strings, read token by token."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend

from omlx_server.text.answers.answer import AnswerParser
from omlx_server.text.answers.form import AnswerForm
from omlx_server.text.dialect import dialect_of, shown_ids
from omlx_server.text.parts import Assembled, Part, assemble
from omlx_server.text.reasoning.style import HARMONY, Opening, Style
from omlx_server.text.tokenizer import Tokenizer
from omlx_server.text.tool_calls.formats import JSON_TOOLS
from tests.text.conftest import Load

bounded = settings(max_examples=150, deadline=None, derandomize=True)

THINK = Style("<think>", "</think>", "\n</think>\n\n")
TOOLS: tuple[dict[str, Any], ...] = ({"type": "function", "function": {"name": "f"}},)
CALL = '<tool_call>\n{"name": "f", "arguments": {"stop": 1}}\n</tool_call>'


def form(**fields: Any) -> AnswerForm:
    whole: dict[str, Any] = {
        "style": THINK,
        "opening": Opening.FREE,
        "family": JSON_TOOLS,
        "tools": TOOLS,
        "make_call_id": lambda: "id",
    }
    return AnswerForm(**(whole | fields))


def parts_of(tokenizer: Tokenizer, text: str, form: AnswerForm) -> tuple[list[Part], AnswerParser]:
    answer = AnswerParser(tokenizer, form)
    parts: list[Part] = []
    for token in tokenizer.encode(text):
        parts += answer.add(token).parts
        if answer.ended:
            return parts, answer
    return [*parts, *answer.finish()], answer


def read(tokenizer: Tokenizer, text: str, form: AnswerForm) -> Assembled:
    return assemble(parts_of(tokenizer, text, form)[0])


@pytest.fixture
def tokenizer(load: Load) -> Tokenizer:
    return load("byte_level")


def test_all_three(tokenizer: Tokenizer) -> None:
    whole = read(tokenizer, f"<think>Hm.</think>I look.\n{CALL}", form())
    assert (whole.reasoning, whole.text) == ("Hm.", "I look.\n")
    assert [(call.name, call.arguments) for call in whole.calls] == [("f", '{"stop": 1}')]


def test_stops_are_not_matched_in_thoughts_and_calls(tokenizer: Tokenizer) -> None:
    text = f"<think>stop</think>Yes. {CALL}stop, too"
    parts, answer = parts_of(tokenizer, text, form(stops=("stop",)))
    whole = assemble(parts)
    assert answer.stopped == "stop" and whole.reasoning == "stop" and len(whole.calls) == 1
    assert whole.text == "Yes. "


def test_a_stop_string_does_not_reach_over_a_call(tokenizer: Tokenizer) -> None:
    parts, answer = parts_of(tokenizer, f"a st{CALL}op b", form(stops=("stop",)))
    assert answer.stopped is None and assemble(parts).text == "a stop b"


def test_one_call_too_many_ends_the_answer(tokenizer: Tokenizer) -> None:
    parts, answer = parts_of(tokenizer, f"{CALL}\n{CALL}", form(many=False))
    assert answer.has_call_too_many and answer.ended and answer.calls == 1
    assert len(assemble(parts).calls) == 1
    parts, answer = parts_of(tokenizer, f"{CALL}\n{CALL}", form())
    assert not answer.has_call_too_many and answer.calls == 2 == len(assemble(parts).calls)


def test_of_calls_only_a_cut_one_is_no_text(tokenizer: Tokenizer) -> None:
    cut = f'{CALL}\n<tool_call>\n{{"na'
    assert read(tokenizer, cut, form()).text
    whole = read(tokenizer, cut, form(calls_only=True))
    assert whole.text == "" and len(whole.calls) == 1


def test_control_tokens_of_markers_are_seen(tokenizer: Tokenizer) -> None:
    end = tokenizer.token_id("<|im_start|>")
    assert end is not None
    style = Style("<|im_start|>", "</think>", "</think>")
    text = "<|im_start|>Hm.</think>Yes."
    assert read(tokenizer, text, form(style=style)).text == "Hm.</think>Yes."
    shown = shown_ids(tokenizer, style.markers)
    assert shown == {end}
    whole = read(tokenizer, text, form(style=style, shown=shown))
    assert (whole.reasoning, whole.text) == ("Hm.", "Yes.")


_WORDS = st.sampled_from(
    [
        "<think>",
        "</think>",
        CALL,
        "<tool_call>",
        "</tool_call>",
        '{"name": "f"',
        "a",
        " b",
        "\n",
        "é",
    ]
)


@bounded
@given(
    words=st.lists(_WORDS, max_size=10), stops=st.lists(st.sampled_from(["a b", "\n"]), max_size=2)
)
def test_what_is_streamed_is_what_is_whole(load: Load, words: list[str], stops: list[str]) -> None:
    """The text as ordinary tokens of many cuts gives the same as the letters one by one."""
    tokenizer, text = load("byte_level"), "".join(words)
    asked = form(stops=tuple(stops))
    letters = AnswerParser(tokenizer, asked)
    parts: list[Part] = []
    for byte in text.encode():
        token = next(
            t for t in range(tokenizer.vocab_size) if tokenizer.token_bytes(t) == bytes([byte])
        )
        parts += letters.add(token).parts
    if not letters.ended:
        parts += letters.finish()
    whole = read(tokenizer, text, asked)
    assert assemble(parts) == whole


def test_channels_of_control_tokens(load: Load) -> None:
    """gpt-oss writes its headers with special tokens, which no reader of an answer sees."""
    source = load("byte_level")
    backend = Backend.from_str(source._backend.to_str())
    backend.add_special_tokens([*HARMONY.channels, "<|return|>"])
    tokenizer = Tokenizer(backend, eos_ids=frozenset(), chat_templates={}, template_variables={})
    dialect = dialect_of(tokenizer, lambda messages, **_: "")
    assert dialect.style is HARMONY
    shown = shown_ids(tokenizer, HARMONY.markers)
    assert len(shown) == len(HARMONY.channels)
    text = (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary "
        'to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|><|start|>assistant'
        "<|channel|>final<|message|>Yes.<|return|>"
    )
    whole = read(tokenizer, text, form(style=HARMONY, shown=shown))
    assert (whole.reasoning, whole.text) == ("Hm.", "Yes.")
    assert [(call.name, call.arguments) for call in whole.calls] == [("f", '{"a": 1}')]
