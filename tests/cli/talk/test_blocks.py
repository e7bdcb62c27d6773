"""Markdown that comes in pieces falls into blocks, of which only the last may change."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omlx_server.cli.talk.terminal.markdown import blocks_of

CASES = {
    "one\ntwo\n\nthree": ["one\ntwo", "three"],
    "# a\n# b\ntext": ["# a", "# b", "text"],
    "text\n# not a title of the text": ["text", "# not a title of the text"],
    "#hashtag\nmore": ["#hashtag\nmore"],
    "say:\n```py\na\n\nb\n```\nmore": ["say:", "```py\na\n\nb\n```", "more"],
    "~~~~\n```\n~~~\n~~~~~\nx": ["~~~~\n```\n~~~\n~~~~~", "x"],
    "```\nopen\n\n# no title": ["```\nopen\n\n# no title"],
    "```a`b\n\nx": ["```a`b", "x"],
    "- a\n\n- b\n\n  inside\n\nc": ["- a\n\n- b\n\n  inside", "c"],
    "1. a\n\n   ```\n   x\n\n   y\n   ```\n\n2. b": [
        "1. a\n\n   ```\n   x\n\n   y\n   ```\n\n2. b"
    ],
    "|a|\n|-|\n|1|\n\n> q\n>\n> r": ["|a|\n|-|\n|1|", "> q\n>\n> r"],
    "\n\n  \na": ["a"],
    "": [],
}


def split(text: str) -> list[str]:
    return [block.rstrip("\n") for block in blocks_of(text)]


def split_by_lines(text: str) -> list[str]:
    """Split as a screen does, which keeps the last block open after each line."""
    final: list[str] = []
    unfinished = ""
    for line in text.split("\n"):
        *complete, unfinished = blocks_of(f"{unfinished}{line}") or [""]
        final += complete
        unfinished += "\n"
    return [block.rstrip("\n") for block in (*final, unfinished) if block.strip()]


@pytest.mark.parametrize(("text", "expected"), CASES.items(), ids=repr)
def test_a_text_has_its_blocks_however_it_comes(text: str, expected: list[str]) -> None:
    assert split(text) == split_by_lines(text) == expected


@given(st.lists(st.sampled_from(["a", "\n", "\n\n", "```", "# ", "- ", "1. ", "  ", "|", "~~~"])))
def test_nothing_is_lost_or_said_twice(pieces: list[str]) -> None:
    found = split("".join(pieces))
    assert found == split_by_lines("".join(pieces))
    kept = "\n".join(found).split("\n")
    assert [x for x in kept if x.strip()] == [x for x in "".join(pieces).split("\n") if x.strip()]
