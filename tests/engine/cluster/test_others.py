"""A read of the cold tier is there when every rank has its part of it."""

import pytest

from omlx_server.core.blocks.block import PayloadId
from omlx_server.core.blocks.keys import BlockKey
from omlx_server.core.blocks.record import Packed, Record
from omlx_server.core.cluster.told import Found, Promote, Read, Told
from omlx_server.core.crash import Crash
from omlx_server.engine.cluster.others import NOT_ON_EVERY_RANK, Others
from omlx_server.store.worker import Recalled

RECORD = Record("space", BlockKey(b"parent"), 0, (1, 2))
PACKED = Packed((), ())


@pytest.fixture
def told() -> list[Told]:
    return []


@pytest.fixture
def others(told: list[Told]) -> Others:
    return Others(told.append, 2)


def asked(others: Others, told: list[Told]) -> int:
    others.read(RECORD, 1.0)
    read = told[-1]
    assert isinstance(read, Read)
    return read.number


def test_it_waits_for_all_ranks(others: Others, told: list[Told]) -> None:
    number = asked(others, told)
    others.heard(Found(number, found=True))
    others.came(Recalled(RECORD, PACKED))
    assert not others.complete()
    others.heard(Found(number, found=True))
    assert others.complete() == [(number, Recalled(RECORD, PACKED))]
    assert not others.complete()


def test_what_one_rank_lacks_is_a_miss_on_all(others: Others, told: list[Told]) -> None:
    number = asked(others, told)
    others.came(Recalled(RECORD, PACKED))
    for found in (True, False):
        others.heard(Found(number, found=found))
    [(_, recalled)] = others.complete()
    assert recalled.packed is None
    assert recalled.reason == NOT_ON_EVERY_RANK


def test_the_reason_of_rank_0_is_kept(others: Others, told: list[Told]) -> None:
    number = asked(others, told)
    others.came(Recalled(RECORD, reason="timeout"))
    for _ in range(2):
        others.heard(Found(number, found=True))
    assert others.complete() == [(number, Recalled(RECORD, reason="timeout"))]


def test_a_late_answer_is_not_taken_for_that_of_the_next_read(
    others: Others, told: list[Told]
) -> None:
    first = asked(others, told)
    others.came(Recalled(RECORD, reason="timeout"))
    second = asked(others, told)
    others.came(Recalled(RECORD, PACKED))
    others.heard(Found(first, found=False))
    others.heard(Found(second, found=True))
    assert not others.complete()
    others.heard(Found(second, found=True))
    assert others.complete() == [(second, Recalled(RECORD, PACKED))]
    others.promote(second, PayloadId(7))
    assert told[-1] == Promote(second, PayloadId(7))


def test_a_failed_step_leaves_a_traceback_only_where_no_rank_is_gone(
    others: Others, caplog: pytest.LogCaptureFixture
) -> None:
    crash = Crash(RuntimeError("a shape is wrong"))
    others.lost = lambda problem: "rank 1 is lost"
    assert others.failed(crash) == "rank 1 is lost" and not caplog.records
    others.lost = lambda problem: problem
    assert "out of step (RuntimeError)" in others.failed(crash)
    assert [record.exc_info for record in caplog.records if record.exc_info]
