"""The account of memory: what counts as held, when it is off, how it reads."""

import pytest

from omlx_server.core.memory.ledger import DRIFT, Ledger, in_words

MB, GB = 10**6, 10**9
FULL = Ledger(
    limit=16 * GB,
    weights=5 * GB,
    live=400 * MB,
    blocks=2 * GB,
    checkpoints=300 * MB,
    pending=50 * MB,
    step=700 * MB,
    pool=800 * MB,
    grammars=30 * MB,
    token_ids=10 * MB,
    responses=20 * MB,
    bodies=40 * MB,
)


def test_held_is_what_lasts_from_step_to_step() -> None:
    assert FULL.held == 7_750 * MB
    assert Ledger(step=5, pool=7, limit=9).held == 0


def test_the_lines_are_all_there_is_but_the_limit() -> None:
    beside = FULL.grammars + FULL.token_ids + FULL.responses + FULL.bodies
    assert sum(FULL.lines().values()) == FULL.held + FULL.step + FULL.pool + beside
    assert list(FULL.lines()) == [
        "weights",
        "live",
        "blocks",
        "checkpoints",
        "pending",
        "step",
        "pool",
        "machine",
        "grammars",
        "token_ids",
        "responses",
        "bodies",
    ]


@pytest.mark.parametrize(
    ("off_by", "drift"), [(0, 0.0), (155 * MB, 0.02), (-155 * MB, -0.02), (7_750 * MB, 1.0)]
)
def test_drift_is_a_share_of_what_is_held_with_its_sign(off_by: int, drift: float) -> None:
    assert FULL.drift(FULL.held + off_by) == pytest.approx(drift)
    assert pytest.approx(0.02) == DRIFT


def test_a_few_bytes_beside_nothing_are_no_drift() -> None:
    assert Ledger().drift(100_000) < DRIFT
    assert Ledger(weights=1000).drift(1000 + (1 << 24)) == 1.0


def test_it_reads_as_an_account_of_what_there_is() -> None:
    assert str(Ledger(limit=16 * GB)) == "nothing held of 16 GB"
    assert str(Ledger(limit=16 * GB, weights=5 * GB, live=400 * MB)) == (
        "weights 5 GB, live 400 MB of 16 GB"
    )


@pytest.mark.parametrize(
    ("nbytes", "words"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 KB"),
        (1234, "1.23 KB"),
        (999_400, "999 KB"),
        (999_600, "1 MB"),
        (12_345_678, "12.3 MB"),
        (999_999_999, "1 GB"),
        (123_456_789_012, "123 GB"),
    ],
)
def test_bytes_have_three_digits_and_decimal_units(nbytes: int, words: str) -> None:
    assert in_words(nbytes) == words
