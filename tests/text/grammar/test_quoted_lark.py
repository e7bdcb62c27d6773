"""Lark grammars of texts within JSON: they take what the grammar itself takes, and nothing else."""

import json
import re
from itertools import product

import pytest
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from omlx_server.text.grammar.quoted_lark import quoted_lark
from tests.api.tool_types import LARK, PATCH, RECURSIVE

LETTERS = 'ab"\\\n\x01'
TEXTS = ["".join(text) for size in range(4) for text in product(LETTERS, repeat=size)]


class Bytes:
    """A vocabulary of single bytes."""

    eos_token_id, bos_token_id = 256, None
    special_token_ids = (256,)
    tokens = (*(bytes([n]) for n in range(256)), b"<end>")

    def __call__(self, text: str) -> list[int]:
        return list(text.encode())


@pytest.fixture(scope="module")
def engine() -> LLTokenizer:
    return LLTokenizer(TokenizerWrapper(Bytes()))


def takes(first: LLMatcher, text: str) -> bool:
    matcher, text = first.deep_copy(), json.dumps(text, ensure_ascii=False)
    tokens = list(text.encode())
    return bool(matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting())


def within_json(engine: LLTokenizer, lark: str) -> LLMatcher:
    inner = quoted_lark(lark).text
    grammar = f'%llguidance {{}}\nstart: "\\"" %lark {{\n{inner}\n}} "\\""\n'
    matcher = LLMatcher(engine, grammar, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    return matcher


@pytest.mark.parametrize(
    "expression",
    [
        r".*",
        r"(?s:.)+",
        r"(?s:.(?-s:.)).",
        r"((?s)a.)b?|.a",
        r'["\\a]{2}',
        r"[^\"a]*",
        r"[^\n]+b",
        r"[]a]b|\x22\u{5c}\u000a",
        r"\s\S|\w\W?",
        r"a(\nb|\\)?",
        r"[\x01]+",
        r"(?:A|B)?a",
    ],
)
def test_an_expression_takes_what_python_s_takes(engine: LLTokenizer, expression: str) -> None:
    """Python spells some things in another way than Rust."""
    python = re.sub(r"\\u\{(\w+)\}", r"\\x\1", expression).replace("[]a]", r"[\]a]")
    python = python.replace("((?s)a.)", "((?s:a.))").replace("(?s:.(?-s:.))", "(?s:.)[^\n]")
    wanted = {text for text in TEXTS if re.fullmatch(python, text, re.ASCII)}
    grammar = within_json(engine, f"start: /{expression}/")
    found = {text for text in TEXTS if takes(grammar, text)}
    assert found == wanted and wanted


GRAMMARS = [
    (LARK, ['+"a\n', "-a\\\n+c\n"], ["+a", "*a\n", ""]),
    ('start: "A\\n\\""i x\nx: "b" | ', ['a\n"', 'A\n"b'], ["a\n", 'a\n"B']),
    ('start: "a\\n\\\\" "\\""', ['a\n\\"'], ["a", 'a\n"']),
    ('?start.2: "a".."c" [Y] -> x\n// "z"\nY: /"/ ~ 2..3', ["a", 'b""', 'c"""'], ['a"', "d"]),
    ("%import common (WS, INT)\n%import common.LF -> END\nstart: INT WS END", ["1\t\n"], ["1\t"]),
    ("start: ESCAPED_STRING\n%import common.ESCAPED_STRING", ['"a\\"b"', '""'], ['"a"b"', "a"]),
    ('start: e\ne: "(" e ")" | /[0-9]+/ ', ["((12))"], ["((1)"]),
    ('start: "a"+\n%ignore / /', ["a a"], ["b"]),
    (
        PATCH,
        [
            '*** Begin Patch\n*** Add File: é "b"\\.py\n+x = "\\n"\t\n+\n*** End Patch\n',
            "*** Begin Patch\n*** Update File: a\n*** Move to: b\n@@ def f():\n-a\n+b\n c\n"
            "*** End of File\n*** Delete File: c\n*** End Patch",
        ],
        ["*** Begin Patch\n*** End Patch\n", "*** Begin Patch\n*** Add File: a\nx\n*** End Patch"],
    ),
]


@pytest.mark.parametrize(("lark", "matches", "others"), GRAMMARS)
def test_a_grammar_takes_what_it_is_for(
    engine: LLTokenizer, lark: str, matches: list[str], others: list[str]
) -> None:
    grammar = within_json(engine, lark)
    for text in matches:
        assert takes(grammar, text), text
    for text in others:
        assert not takes(grammar, text), text


@pytest.mark.parametrize(
    "lark",
    [
        RECURSIVE,
        'start: "a" /\\n/\n%ignore / /',
        "start: %json {}",
        "start: <end>",
        "start: A & B",
        "start: ~A",
        "start: /[[:alpha:]]/",
        "start: /\\p{S}/",
        "start: /a b/x",
        "start: /[b-a]/",
        "start: a{3}",
        '%llguidance {}\nstart: "a"',
        'start: "\\q"',
    ],
)
def test_what_can_not_be_rewritten_is_told(lark: str) -> None:
    with pytest.raises(ValueError):
        quoted_lark(lark)


@pytest.mark.parametrize(("lark", "regular"), [(PATCH, True), ('start: "a" [start]', False)])
def test_a_grammar_without_recursion_is_one_terminal(lark: str, regular: bool) -> None:
    assert quoted_lark(lark).regular is regular
