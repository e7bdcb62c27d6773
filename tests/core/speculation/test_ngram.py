"""What the text itself lets expect."""

import random

import pytest

from omlx_server.core.speculation.ngram import NgramLookup

SENTENCE = [7, 300, 70_000, 5, 9, 11, 2, 8, 1]


def test_after_words_that_stood_before_it_expects_what_followed_them() -> None:
    lookup = NgramLookup([*SENTENCE, 99, 98, *SENTENCE[:4]])
    assert lookup.source == 4
    assert lookup.draft(3) == tuple(SENTENCE[4:7])


def test_new_words_let_expect_nothing() -> None:
    lookup = NgramLookup([*SENTENCE, 99, 98, 97])
    assert lookup.source is None and lookup.draft(5) == ()
    assert NgramLookup([]).draft(1) == () and NgramLookup([3, 3]).draft(1) == ()


def test_the_newest_of_several_places_counts_unless_another_agrees_longer() -> None:
    short = [1, 2, 3, 50, 1, 2, 3, 60, 9, 1, 2, 3]
    assert NgramLookup(short).draft(1) == (60,)
    long = [*range(100, 110), 50, 108, 109, 60, *range(100, 110)]
    assert NgramLookup(long).draft(1) == (50,)


def test_it_follows_its_source_as_long_as_that_is_right() -> None:
    lookup = NgramLookup([*SENTENCE, 99, *SENTENCE[:3]])
    assert lookup.take(SENTENCE[3:6]) == (3, 3)
    assert lookup.draft(2) == tuple(SENTENCE[6:8])
    assert lookup.take([4, 4]) == (0, 1)  # the second came when nothing was expected
    assert lookup.draft(2) == ()


def test_a_loop_goes_on_as_long_as_it_is_asked_for() -> None:
    lookup = NgramLookup([4, 5, 6, 4, 5, 6, 4, 5, 6])
    assert lookup.draft(8) == (4, 5, 6, 4, 5, 6, 4, 5)
    assert NgramLookup([2] * 5).draft(3) == (2, 2, 2)


def test_bytes_that_agree_across_the_border_of_tokens_are_no_place() -> None:
    # 1 and 256 are 01 00 00 00 and 00 01 00 00: shifted by a byte they agree.
    lookup = NgramLookup([256, 256, 256, 256, 7, 1, 1, 1])
    assert lookup.source is None


def test_many_tokens_can_be_skipped() -> None:
    lookup = NgramLookup([*SENTENCE, 99])
    lookup.skip([*range(500, 600), *SENTENCE[:5]])
    assert lookup.draft(2) == tuple(SENTENCE[5:7]) and len(lookup) == 115


@pytest.mark.parametrize("seed", range(20))
def test_taking_tokens_one_by_one_or_together_is_the_same(seed: int) -> None:
    rng = random.Random(seed)
    text = [rng.randrange(4) for _ in range(200)]
    one, many = NgramLookup(text[:20]), NgramLookup(text[:20])
    counts, at = [0, 0], 20
    while at < len(text):
        step = rng.randrange(1, 9)
        for token in text[at : at + step]:
            drafted = one.draft(6)
            assert len(drafted) in (0, 6)
            right, tried = one.take([token])
            assert (right, tried) == (int(drafted[:1] == (token,)), int(bool(drafted)))
            counts[0] += right
        counts[1] += many.take(text[at : at + step])[0]
        at += step
        assert one.source == many.source and len(one) == len(many) == min(at, len(text))
    assert counts[0] == counts[1] > 0
