"""How the machine's memory is shared out between the server, the rest, and the server's parts."""

import pytest

from omlx_server.core.memory.ledger import (
    checkpoint_bytes,
    hot_cache_bytes,
    limit_bytes,
    queue_bytes,
    reserve_bytes,
    wired_bytes,
)

GB = 10**9


@pytest.mark.parametrize(
    ("limit", "taken", "hot"),
    [(24 * GB, 4 * GB, 20 * GB), (12 * GB, 12 * GB, 0.6 * GB), (12 * GB, 40 * GB, 0.6 * GB)],
)
def test_the_cache_gets_what_remains_and_never_nothing(limit: int, taken: int, hot: float) -> None:
    assert hot_cache_bytes(limit, taken) == hot
    assert checkpoint_bytes(int(hot)) == hot // 4


@pytest.mark.parametrize(
    ("ram", "working_set", "limit"),
    [
        (24 * GB, None, 18 * GB),  # a quarter is left to the rest
        (8 * GB, None, 6 * GB),  # two at least
        (128 * GB, None, 112 * GB),  # sixteen are enough for anybody
        (128 * GB, 96 * GB, 96 * GB),  # Metal knows better
        (2 * GB, None, 1 * GB),  # and a small machine is halved
    ],
)
def test_the_limit_leaves_the_machine_its_reserve(
    ram: int, working_set: int | None, limit: int
) -> None:
    assert limit_bytes(ram, working_set, reserve_bytes(ram)) == limit


def test_a_reserve_of_everything_leaves_a_little() -> None:
    assert 0 < limit_bytes(16 * GB, None, 16 * GB) < GB


def test_the_queue_to_the_cold_tier_gets_a_sixteenth_at_most() -> None:
    assert queue_bytes(16 * GB, GB // 2) == GB // 2
    assert queue_bytes(GB, GB // 2) == GB // 16


def test_no_more_is_wired_than_metal_recommends_and_nothing_without_metal() -> None:
    assert wired_bytes("auto", 112 * GB, 96 * GB) == 96 * GB
    assert wired_bytes("auto", 8 * GB, 96 * GB) == 8 * GB
    assert wired_bytes(100 * GB, 8 * GB, 96 * GB) == 96 * GB
    assert wired_bytes(3 * GB, 8 * GB, 96 * GB) == 3 * GB
    assert wired_bytes("auto", 8 * GB, None) == wired_bytes(GB, 8 * GB, None) == 0


def test_off_wires_nothing() -> None:
    assert wired_bytes("off", 8 * GB, 96 * GB) == 0
