"""Markdown as lines of a terminal: it fits, and nothing of it controls the terminal."""

import re
from io import StringIO

import pyte
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.text import Text

from omlx_server.cli.shell.output import harmless
from omlx_server.cli.talk.terminal.markdown import Renderer
from omlx_server.cli.talk.terminal.screen import LiveLines

STYLE = re.compile(r"\x1b\[[0-9;]*m")
COLUMNS, ROWS = 80, 24


@pytest.fixture(autouse=True)
def colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "xterm-256color")


def plain(text: str, width: int = 40) -> list[str]:
    return [Text.from_ansi(line).plain.rstrip() for line in Renderer().markdown(text, width)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a **b** `c`", ["a b c"]),
        ("# Title", ["Title"]),
        ("one\ntwo", ["one", "two"]),
        ("<div>x</div>", ["<div>x</div>"]),
        ("<!-- note -->", ["<!-- note -->"]),
        ("[text](http://a.b)", ["text (http://a.b)"]),
        ("[a]: http://b", ["[a]: http://b"]),
        ("3. a\n4. b", [" 3 a", " 4 b"]),
        ("```py\nx = 1\n\n```", ["```py", "x = 1", "```"]),
        ("```no-such-language\nx", ["```no-such-language", "x", "```"]),
        ("|a|b|\n|-|-|\n|1|2|", [" a  b", " ────", " 1  2"]),
        ("", []),
    ],
)
def test_it_is_shown_without_its_marks_but_with_all_words(text: str, expected: list[str]) -> None:
    assert plain(text) == expected


def test_words_are_wrapped_and_those_that_are_too_long_are_cut() -> None:
    assert plain("one two three", 8) == ["one two", "three"]
    assert plain("abcdefgh", 3) == ["abc", "def", "gh"]
    assert plain("```\nabcdefgh\n```", 5) == ["```", "abcde", "fgh", "```"]


HOSTILE = [
    "\x1b[2J",
    "\x1b]0;t\x07",
    "\x9b2J",
    "\x90q\x9c",
    "&#27;[2J",
    "&#13;",
    "\r",
    "\b",
    "\x0e",
    "\u202e",
    "&#x2066;",
    "``` &#x202e;\n",
]
MARKS = [*"*_`~#>-|[]()!<&\n\t ", "```", "1. ", "word ", "|-|\n", "http://a.b ", "\u4e16", "\u0301"]


@settings(deadline=None)
@given(st.lists(st.sampled_from(HOSTILE + MARKS), max_size=30), st.integers(1, 50))
def test_no_text_controls_the_terminal_or_leaves_its_width(pieces: list[str], width: int) -> None:
    for render in (Renderer().markdown, Renderer().dimmed):
        for line in render("".join(pieces), width):
            said = STYLE.sub("", line)
            assert harmless(said) == said and "\n" not in said
            assert width < 12 or cell_len(said) <= width


def test_colours_are_left_out_where_nobody_wants_them(monkeypatch: pytest.MonkeyPatch) -> None:
    code, thought = "```py\nimport os\n```", "Hm"
    assert re.search(r"\x1b\[[0-9;]*9[0-9];", "".join(Renderer().markdown(code, 40)))
    assert Renderer().dimmed(thought, 40) == ["\x1b[2mHm\x1b[0m"]
    monkeypatch.setenv("NO_COLOR", "1")
    assert not re.search(r"\x1b\[[0-9;]*[349][0-9]", "".join(Renderer().markdown(code, 40)))
    assert Renderer().dimmed(thought, 40) == [thought]


def test_a_text_that_would_take_long_to_parse_is_shown_as_it_is() -> None:
    assert "".join(plain("[" * 60_000, 100)) == "[" * 60_000


LINES = st.builds(
    lambda letter, count: [f"{letter}{number}" for number in range(count)],
    st.sampled_from("ab"),
    st.integers(1, 2 * ROWS),
)


@settings(deadline=None)
@given(st.lists(st.tuples(st.lists(LINES, max_size=4), LINES), min_size=1, max_size=3))
def test_what_is_final_is_seen_once_whatever_was_shown_before(
    blocks: list[tuple[list[list[str]], list[str]]],
) -> None:
    """Also what is higher than the terminal: what has scrolled away is all there, once."""
    out, screen = StringIO(), pyte.HistoryScreen(COLUMNS, ROWS, history=1000, ratio=1)
    live = LiveLines(out)
    for shown, final in blocks:
        for tentative in shown:
            live.show(tentative)
        live.finish(final)
    screen.set_mode(pyte.modes.LNM)  # as a terminal's driver, which returns the carriage
    pyte.Stream(screen).feed(out.getvalue())
    above = ["".join(line[x].data for x in range(COLUMNS)) for line in screen.history.top]
    seen = [line.rstrip() for line in [*above, *screen.display]]
    expected = [line for _, final in blocks for line in final]
    assert seen[: len(expected)] == expected
    assert not any(seen[len(expected) :])
