"""A read of the cold tier is there when every rank has its part of it."""

import pytest

from omlx_server.core.blocks.keys import BlockKey
from omlx_server.core.blocks.record import PackedArrays, Recalled, Record
from omlx_server.core.cluster.commands import Command, PayloadRead, ReadPayload
from omlx_server.core.cluster.followers import Followers
from omlx_server.core.crash import Crash
from omlx_server.core.ranks import NOT_ON_EVERY_RANK

RECORD = Record("space", BlockKey(b"parent"), 0, (1, 2))
PACKED = PackedArrays((), ())


@pytest.fixture
def commands() -> list[Command]:
    return []


@pytest.fixture
def followers(commands: list[Command]) -> Followers:
    return Followers(commands.append, 2)


def asked(followers: Followers, commands: list[Command]) -> int:
    followers.read(RECORD, 1.0)
    read = commands[-1]
    assert isinstance(read, ReadPayload)
    return read.number


def test_it_waits_for_all_ranks(followers: Followers, commands: list[Command]) -> None:
    number = asked(followers, commands)
    followers.receive(PayloadRead(number))
    followers.note_own_read(Recalled(RECORD, PACKED))
    assert not followers.take_complete()
    followers.receive(PayloadRead(number))
    assert followers.take_complete() == [(number, Recalled(RECORD, PACKED))]
    assert not followers.take_complete()


@pytest.mark.parametrize(
    ("reasons", "reason"),
    [
        (("", "gone"), NOT_ON_EVERY_RANK),
        (("unusable", ""), NOT_ON_EVERY_RANK),
        (("timeout", "gone"), NOT_ON_EVERY_RANK),
        (("", "timeout"), "timeout"),  # it is still stored there
        (("unreachable", "unreachable"), "unreachable"),
    ],
)
def test_what_one_rank_lacks_is_a_miss_on_all(
    followers: Followers, commands: list[Command], reasons: tuple[str, str], reason: str
) -> None:
    number = asked(followers, commands)
    followers.note_own_read(Recalled(RECORD, PACKED))
    for each in reasons:
        followers.receive(PayloadRead(number, each))
    assert followers.take_complete() == [(number, Recalled(RECORD, reason=reason))]


def test_the_reason_of_rank_0_is_kept(followers: Followers, commands: list[Command]) -> None:
    number = asked(followers, commands)
    followers.note_own_read(Recalled(RECORD, reason="timeout"))
    for _ in range(2):
        followers.receive(PayloadRead(number))
    assert followers.take_complete() == [(number, Recalled(RECORD, reason="timeout"))]


def test_a_late_answer_is_not_taken_for_that_of_the_next_read(
    followers: Followers, commands: list[Command]
) -> None:
    first = asked(followers, commands)
    followers.note_own_read(Recalled(RECORD, reason="timeout"))
    second = asked(followers, commands)
    followers.note_own_read(Recalled(RECORD, PACKED))
    followers.receive(PayloadRead(first, "gone"))
    followers.receive(PayloadRead(second))
    assert not followers.take_complete()
    followers.receive(PayloadRead(second))
    assert followers.take_complete() == [(second, Recalled(RECORD, PACKED))]


def test_a_failed_step_leaves_a_traceback_only_where_no_rank_is_gone(
    followers: Followers, caplog: pytest.LogCaptureFixture
) -> None:
    crash = Crash(RuntimeError("a shape is wrong"))
    followers.step_failed = lambda problem: "rank 1 is lost"
    assert followers.fail(crash) == "rank 1 is lost" and not caplog.records
    followers.step_failed = lambda problem: problem
    assert "out of step (RuntimeError)" in followers.fail(crash)
    assert [record.exc_info for record in caplog.records if record.exc_info]
