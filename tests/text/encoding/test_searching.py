"""Searching in slices finds what one search finds."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omlx_server.text.encoding import searching

bounded = settings(max_examples=200, deadline=None, derandomize=True)
PATTERNS = ["ab", "a(?:bc?|c)", "(?<=b)a", "b(?=c)", "aaa|ab|c"]
texts = st.text("abc", max_size=40)


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "_SLICE_CHARS", 5)


@bounded
@given(pattern=st.sampled_from(PATTERNS), text=texts, start=st.integers(0, 45))
def test_the_first_match(pattern: str, text: str, start: int) -> None:
    expected = re.compile(pattern).search(text, start)
    found = next(searching.find_all(re.compile(pattern), text, start, reach=3), None)
    assert (found and found.span()) == (expected and expected.span())


@bounded
@given(pattern=st.sampled_from(PATTERNS), text=texts)
def test_all_matches_replaced(pattern: str, text: str) -> None:
    compiled = re.compile(pattern)
    found = searching.replace_all(compiled, lambda match: f"<{match[0]}>", text, reach=3)
    assert found == compiled.sub(lambda match: f"<{match[0]}>", text)
