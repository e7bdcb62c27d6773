"""Owners get equal times, at every level, whoever comes and goes."""

import random

from omlx_server.core.clients import Owner, VirtualTimes


def _next(times: VirtualTimes, owners: set[Owner]) -> Owner:
    times.settle(owners)
    return min(owners, key=times.rank)


def test_owners_with_work_get_equal_seconds_whatever_their_turns_take() -> None:
    times, owners = VirtualTimes(), set[Owner]({(b"a", b""), (b"b", b"")})
    had = dict.fromkeys(owners, 0.0)
    for _ in range(500):
        owner = _next(times, owners)
        seconds = 0.1 if owner[0] == b"a" else 0.9
        had[owner] += seconds
        times.charge(owner, seconds)
    assert abs(had[b"a", b""] - had[b"b", b""]) <= 1.0


def test_conversations_share_what_their_client_gets() -> None:
    times = VirtualTimes()
    owners: set[Owner] = {(b"swarm", bytes([i])) for i in range(30)} | {(b"person", b"chat")}
    had = 0
    for _ in range(200):
        owner = _next(times, owners)
        had += owner[0] == b"person"
        times.charge(owner, 1.0)
    assert had == 100


def test_time_at_rest_is_not_saved_up() -> None:
    times = VirtualTimes()
    for _ in range(100):
        times.charge(_next(times, {(b"a",)}), 1.0)
    both: set[Owner] = {(b"a",), (b"b",)}
    order = []
    for _ in range(6):
        order.append(_next(times, both)[0])
        times.charge((order[-1],), 1.0)
    assert order.count(b"a") == 3


def test_who_leaves_while_ahead_is_still_ahead_at_once_after() -> None:
    times, both = VirtualTimes(), set[Owner]({(b"a",), (b"b",)})
    times.settle(both)
    times.charge((b"a",), 10.0)
    times.settle({(b"b",)})
    assert _next(times, both) == (b"b",)


def test_owners_that_have_left_are_forgotten() -> None:
    times, rng = VirtualTimes(), random.Random(1)
    for number in range(2000):
        owners: set[Owner] = {(bytes([rng.randrange(4)]), number.to_bytes(4, "big"))}
        if rng.random() < 0.5:
            owners.add((b"stays", b""))
        times.charge(_next(times, owners), rng.random())
    for _ in range(2000):
        times.charge(_next(times, {(b"stays", b"")}), 1.0)
    assert len(times._seconds) == 2


def test_who_waits_is_served_however_many_newcomers_come() -> None:
    """Each brings an owner of its own and goes when it was served once."""
    times, waits = VirtualTimes(), 0
    for number in range(1000):
        owners: set[Owner] = {(b"stays",), (b"%d" % number,), (b"%d" % (number + 1),)}
        owner = _next(times, owners)
        waits = 0 if owner == (b"stays",) else waits + 1
        assert waits <= 4
        times.charge(owner, 1.0)
