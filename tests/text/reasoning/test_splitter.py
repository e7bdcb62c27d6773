"""Thoughts apart from answers, however the text is cut."""

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omlx_server.core.model_files.parser_signs import reasoning_parser_of
from omlx_server.text.parts import Part, assemble
from omlx_server.text.reasoning.splitter import make_splitter
from omlx_server.text.reasoning.style import HARMONY, STYLES, Opening, Style, opening_of
from omlx_server.text.tool_calls.values import Numbering

bounded = settings(max_examples=300, deadline=None, derandomize=True)

THINK = Style("<think>", "</think>", "\n</think>\n\n")
XTML = STYLES["kimi_k3"]
assert XTML is not None
KINDS = {"think": THINK, "xtml": XTML, "harmony": HARMONY}


def read(
    style: Style,
    pieces: Iterable[str],
    opening: Opening = Opening.FREE,
    calls: tuple[str, ...] = (),
) -> tuple[str, str]:
    """The thought and the answer."""
    parts = split(style, pieces, opening, calls)
    whole = assemble(parts)
    return whole.reasoning, whole.text


def split(
    style: Style,
    pieces: Iterable[str],
    opening: Opening = Opening.FREE,
    calls: tuple[str, ...] = (),
    tools: tuple[str, ...] = ("f", "g"),
) -> list[Part]:
    splitter = make_splitter(style, opening, calls, Numbering(lambda: "id"), tools)
    parts = [part for piece in pieces for part in splitter.feed(piece)]
    return parts + splitter.finish()


@pytest.mark.parametrize(
    ("text", "opening", "thought", "answer"),
    [
        ("<think>\nHm. \n</think>\n\nYes.", Opening.FREE, "Hm.", "Yes."),
        ("  \n<think>Hm.</think>Yes.", Opening.FREE, "Hm.", "Yes."),
        ("Hm.\n</think>\n\nYes.\n", Opening.WITHIN, "Hm.", "Yes.\n"),
        ("Yes <think>no</think>.", Opening.FREE, "", "Yes <think>no</think>."),
        (" Yes.", Opening.FREE, "", " Yes."),
        ("Yes.", Opening.PAST, "", "Yes."),
        ("<think>never ends \n", Opening.FREE, "never ends", ""),
        ("<think></think>", Opening.FREE, "", ""),
        ("<think>", Opening.FREE, "", ""),
        ("<thin", Opening.FREE, "", "<thin"),
        ("<think>a </thin k</think>b", Opening.FREE, "a </thin k", "b"),
        ("<think>a</think> b</think>", Opening.FREE, "a", "b</think>"),
        ("<think>a\n\nb</think>\nc\n", Opening.FREE, "a\n\nb", "c\n"),
        ("", Opening.WITHIN, "", ""),
    ],
)
def test_a_thought_and_an_answer(text: str, opening: Opening, thought: str, answer: str) -> None:
    assert read(THINK, [text], opening) == (thought, answer)
    assert read(THINK, text, opening) == (thought, answer)


def test_a_call_ends_a_thought_only_if_the_model_does_not_leave_it() -> None:
    text = "<think>I need the weather.\n<tool_call>{}"
    assert read(THINK, [text]) == ("I need the weather.\n<tool_call>{}", "")
    for pieces in ([text], text):
        assert read(THINK, pieces, calls=("<tool_call>",)) == (
            "I need the weather.",
            "<tool_call>{}",
        )
    left = text + " or so</think> Yes."
    for pieces in ([left], left):
        thought, answer = read(THINK, pieces, calls=("<tool_call>",))
        assert (thought, answer) == ("I need the weather.\n<tool_call>{} or so", "Yes.")


def test_a_thought_that_was_cut_makes_no_call() -> None:
    splitter = make_splitter(THINK, Opening.FREE, ("<tool_call>",), Numbering(lambda: "id"))
    parts = splitter.feed("<think>Hm. <tool_call>{}") + splitter.finish(cut=True)
    assert assemble(parts).reasoning == "Hm. <tool_call>{}" and not assemble(parts).text


def test_an_end_of_a_thought_that_was_not_begun_is_not_shown() -> None:
    assert read(THINK, "\n</think>\n\nYes.") == ("", "Yes.")


def test_markers_of_the_content_are_dropped() -> None:
    text = (
        "<|open|>think<|sep|>Hm.<|close|>think<|sep|><|open|>response<|sep|>Yes."
        "<|close|>response<|sep|><|close|>message<|sep|>"
    )
    assert XTML is not None
    assert read(XTML, text) == ("Hm.", "Yes.")


HM = "<|channel|>analysis<|message|>Hm.<|end|>"
FINAL = "<|start|>assistant<|channel|>final<|message|>Yes."
CALL = "<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>"


@pytest.mark.parametrize(
    ("text", "thought", "answer", "calls"),
    [
        (HM + FINAL, "Hm.", "Yes.", []),
        (HM + FINAL + "<|return|>", "Hm.", "Yes.", []),
        ("<|channel|>final<|message|>Yes.", "", "Yes.", []),
        ("Yes, without a header.", "", "Yes, without a header.", []),
        (HM + CALL + '{"a": 1}<|call|>', "Hm.", "", [("f", '{"a": 1}')]),
        (HM + CALL + '{"a": [1, "}', "Hm.", "", [("f", '{"a": [1, "}"]}')]),
        (" to=functions.g<|channel|>commentary json<|message|>{}", "", "", [("g", "{}")]),
        (
            "<|channel|>commentary<|message|>I look.<|end|>" + CALL + "{}<|call|>",
            "",
            "I look.",
            [("f", "{}")],
        ),
        (
            HM + HM.replace("Hm.", " So.").replace("<|ch", "<|start|>assistant<|ch"),
            "Hm. So.",
            "",
            [],
        ),
        ("<|channel|>analysis<|message|>never ends", "never ends", "", []),
        ("<|channel|>anal", "", "", []),
    ],
)
def test_channels(text: str, thought: str, answer: str, calls: list[tuple[str, str]]) -> None:
    for pieces in ([text], text):
        whole = assemble(split(HARMONY, pieces))
        assert (whole.reasoning, whole.text) == (thought, answer)
        assert [(call.name, call.arguments) for call in whole.calls] == calls


_TOKENS = st.sampled_from(
    [
        *("<think>", "</think>", "<tool_call>", "<thi", "nk>", "a", " ", "\n", "b c", "{", "}"),
        *HARMONY.channels,
        *("analysis", "final", "commentary", " to=functions.f", '{"a": 1}'),
        *("<|open|>", "<|close|>", "<|sep|>", "think", "response"),
    ]
)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("opening", Opening)
@bounded
@given(tokens=st.lists(_TOKENS, max_size=14), data=st.data())
def test_the_cut_makes_no_difference(
    name: str, opening: Opening, tokens: list[str], data: st.DataObject
) -> None:
    text = "".join(tokens)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole = assemble(split(KINDS[name], [text], opening, ("<tool_call>",)))
    assert assemble(split(KINDS[name], pieces, opening, ("<tool_call>",))) == whole
    assert assemble(split(KINDS[name], text, opening, ("<tool_call>",))) == whole


@bounded
@given(text=st.text("<>/think ab\n", max_size=30))
def test_text_without_markers_is_the_answer(text: str) -> None:
    if not text.lstrip().startswith(("<think>", "</think>")):
        assert read(THINK, text) == ("", text)


@pytest.mark.parametrize(
    ("vocabulary", "template", "start"),
    [
        ({"<think>", "</think>"}, "", "<think>"),
        (set(), "{% if x %}<think>{% endif %}</think>", "<think>"),
        ({"[THINK]", "[/THINK]"}, "", "[THINK]"),
        ({"<|channel>", "<channel|>"}, "", "<|channel>thought"),
        ({"<|channel|>", "<|message|>", "<|start|>", "<think>", "</think>"}, "", "<|channel|>"),
        ({"<think>"}, "<think>", None),
        (set(), "plain", None),
    ],
)
def test_the_style_of_a_model(vocabulary: set[str], template: str, start: str | None) -> None:
    style = STYLES[reasoning_parser_of(template, vocabulary)]
    assert (style.start if style else None) == start


@pytest.mark.parametrize(
    ("end", "opening"),
    [
        ("<|im_start|>assistant\n", Opening.FREE),
        ("<|im_start|>assistant\n<think>\n", Opening.WITHIN),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", Opening.PAST),
        ("what is <think>?<|im_end|>\n<|im_start|>assistant\n", Opening.FREE),
        ("</think>", Opening.PAST),
        ("", Opening.FREE),
    ],
)
def test_how_a_prompt_leaves_the_model(end: str, opening: Opening) -> None:
    assert opening_of(THINK, end) is opening
