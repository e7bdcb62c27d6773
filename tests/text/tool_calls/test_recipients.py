"""Answers of functionary 3.2: each message begins with its recipient."""

import pytest

from omlx_server.text.parts import Part, assemble
from omlx_server.text.tool_calls.recipients import RecipientParser
from omlx_server.text.tool_calls.values import Numbering

CALL = '{"city": ">>> Rome"}'


def read(text: str, size: int, *, in_text: bool = False) -> tuple[str, list[tuple[str, str]]]:
    parser = RecipientParser(Numbering(lambda: "id"), ("f", "g"), in_text=in_text)
    parts: list[Part] = []
    for start in range(0, len(text), size):
        parts += parser.feed(text[start : start + size])
    answer = assemble([*parts, *parser.finish()])
    return answer.text, [(call.name, call.arguments) for call in answer.calls]


@pytest.mark.parametrize("size", [1, 2, 3, 100])
@pytest.mark.parametrize(
    ("text", "said", "calls"),
    [
        ("all\nHello", "Hello", []),
        ("all\n", "", []),
        (f"f\n{CALL}", "", [("f", CALL)]),
        (f"all\nI look.>>>f\n{CALL}>>>g\n{{}}", "I look.", [("f", CALL), ("g", "{}")]),
        (f"f\n{CALL}>>>all\nSo.", "So.", [("f", CALL)]),
        ('f\n{"city": "Ro', "", [("f", '{"city": "Ro"}')]),
        ("f\n{>>>all\nx", "x", [("f", "{}")]),
        ("all\n>>> x\n>> y", ">>> x\n>> y", []),
        ("no recipient", "no recipient", []),
        ("other\n{}", "other\n{}", []),
        ("all\nx>>>", "x>>>", []),
        ("f", "f", []),
        ("<tool_call>\n{}", "<tool_call>\n{}", []),
    ],
)
def test_no_text_is_lost(text: str, size: int, said: str, calls: list[tuple[str, str]]) -> None:
    assert read(text, size) == (said, calls)


@pytest.mark.parametrize("size", [1, 3, 100])
def test_a_continued_text_has_no_recipient(size: int) -> None:
    assert read("all\nx", size, in_text=True) == ("all\nx", [])
    assert read(f"f\nx>>>f\n{CALL}", size, in_text=True) == ("f\nx", [("f", CALL)])
