"""Stop strings against the naive form: search in the whole text."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omlx_server.text.answers.answer import StopMatcher

bounded = settings(max_examples=400, deadline=None, derandomize=True)
# Two letters: small alphabets find overlaps sooner.
words = st.text("ab", min_size=1, max_size=5)
stop_lists = st.lists(words, max_size=4).map(tuple)
chunk_lists = st.lists(st.text("ab", max_size=5), max_size=12)


def naive(text: str, stops: tuple[str, ...], include: bool) -> tuple[str, str | None]:
    found = [(text.find(stop) + len(stop), -len(stop), stop) for stop in stops if stop in text]
    if not found:
        return text, None
    end, _, stop = min(found)
    return text[: end if include else end - len(stop)], stop


def streamed(matcher: StopMatcher, chunks: list[str]) -> tuple[list[str], str | None]:
    shown = [matcher.add(chunk) for chunk in chunks]
    return [*shown, matcher.finish()], matcher.stopped


@bounded
@given(chunks=chunk_lists, stops=stop_lists, include=st.booleans())
def test_equals_a_search_in_the_whole_text(
    chunks: list[str], stops: tuple[str, ...], include: bool
) -> None:
    shown, stopped = streamed(StopMatcher(stops, include), chunks)
    assert ("".join(shown), stopped) == naive("".join(chunks), stops, include)


@bounded
@given(chunks=chunk_lists, stops=stop_lists)
def test_holds_back_the_longest_possible_beginning_and_no_more(
    chunks: list[str], stops: tuple[str, ...]
) -> None:
    matcher = StopMatcher(stops)
    seen, shown = "", ""
    for chunk in chunks:
        shown += matcher.add(chunk)
        if matcher.stopped:
            return
        seen += chunk
        starts = [stop[:cut] for stop in stops for cut in range(1, len(stop))]
        held = max((len(start) for start in starts if seen.endswith(start)), default=0)
        assert shown == seen[: len(seen) - held]


def test_a_stop_over_token_borders() -> None:
    matcher = StopMatcher(("\n\nUser:",))
    chunks = ["Hi.\n", "\nUs", "e", "r: more", "later"]
    assert streamed(matcher, chunks[:3]) == (["Hi.", "", "", "\n\nUse"], None)
    matcher = StopMatcher(("\n\nUser:",))
    assert streamed(matcher, chunks) == (["Hi.", "", "", "", "", ""], "\n\nUser:")


def test_a_beginning_that_comes_to_nothing_is_released() -> None:
    matcher = StopMatcher(("END",))
    assert [matcher.add("E"), matcher.add("x"), matcher.add("EN")] == ["", "Ex", ""]
    assert matcher.finish() == "EN"
    assert matcher.finish() == ""


def test_the_earliest_end_wins_and_then_the_longest() -> None:
    assert streamed(StopMatcher(("abcd", "bc")), ["xabcd"]) == (["xa", ""], "bc")
    assert streamed(StopMatcher(("bc", "abc")), ["xabc"]) == (["x", ""], "abc")


def test_the_stop_may_be_kept() -> None:
    matcher = StopMatcher((".",), include=True)
    assert streamed(matcher, ["One. Two."]) == (["One.", ""], ".")


def test_a_long_repetitive_stop_costs_little() -> None:
    matcher = StopMatcher(("a" * 5000 + "b",))
    assert sum(len(matcher.add("a")) for _ in range(20_000)) == 15_000


def test_an_empty_stop_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopMatcher(("a", ""))
