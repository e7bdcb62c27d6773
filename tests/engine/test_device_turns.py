"""Several models, and jobs, share the device by the clients that they work for."""

from random import Random

import pytest

from omlx_server.engine.turns import DeviceTurns, parts_of

A, B, C = b"a", b"b", b"c"


def had(users: dict[int, set[bytes]], longest: dict[int, float], turns: int = 3000) -> list[float]:
    """Each user's part of the time of so many turns, of which each takes up to `longest`."""
    rng, now, seconds = Random(1), 0.0, dict.fromkeys(users, 0.0)
    device = DeviceTurns(lambda: now)
    for _ in range(turns):
        user = device.in_order(users)[0]
        with device.turn(user):
            took = longest[user] * rng.random()
            now += took
        seconds[user] += took
    return [each / now for each in seconds.values()]


def test_a_client_with_many_models_gets_no_more_than_another_one_with_one() -> None:
    users = {0: {A}, 1: {A}, 2: {A, B}, -1: {A}}
    parts = had(users, {0: 1.0, 1: 0.02, 2: 0.1, -1: 0.3})
    assert parts == pytest.approx([1 / 8, 1 / 8, 1 / 8 + 1 / 2, 1 / 8], abs=0.02)


def test_long_steps_get_no_more_time_than_short_ones() -> None:
    assert had({0: {A}, 1: {B}}, {0: 2.0, 1: 0.02}) == pytest.approx([0.5, 0.5], abs=0.02)


def test_a_newcomer_owes_nothing_and_is_owed_nothing() -> None:
    now = 0.0
    device = DeviceTurns(lambda: now)
    for _ in range(10):
        device.in_order({0: {A}, 1: {B}})
        with device.turn(0):
            now += 1
        with device.turn(1):
            now += 1
    turns = list[int]()
    for _ in range(30):
        user = device.in_order({0: {A}, 1: {B}, 2: {C}})[0]
        with device.turn(user):
            now += 1
        turns.append(user)
    assert [turns.count(user) for user in range(3)] == [10, 10, 10]


def test_it_says_how_long_others_had_the_device() -> None:
    now = 0.0
    device, users = DeviceTurns(lambda: now), {0: {A}, 1: {B}}
    device.in_order(users)
    with device.turn(0) as away:
        assert away == 0.0
        now += 1
    with device.turn(1):
        now += 2
    with device.turn(0) as away:
        assert away == 2.0
    device.in_order({})  # one of them alone for a while
    device.in_order(users)
    with device.turn(1) as away:
        assert away == 0.0


def test_a_turn_in_which_nothing_is_done_counts_too() -> None:
    device = DeviceTurns(lambda: 0.0)
    turns = list[int]()
    for _ in range(10):
        user = device.in_order({0: {A}, 1: {B}})[0]
        with device.turn(user):
            turns.append(user)
    assert turns.count(1) == 5


def served(urgent_from: dict[int, float], turns: int) -> tuple[DeviceTurns, list[int]]:
    """Whose turns they were: of three models with a client each, a second for each turn."""
    now, users = 0.0, {0: {A}, 1: {B}, 2: {C}}
    device, whose = DeviceTurns(lambda: now), list[int]()
    for _ in range(turns):
        user = device.in_order(users, urgent_from)[0]
        with device.turn(user):
            now += 1
        whose.append(user)
    return device, whose


def test_who_has_something_urgent_has_most_of_the_time_while_it_has() -> None:
    _, whose = served({0: 0.0}, 80)
    assert [whose.count(user) for user in range(3)] == [60, 10, 10]
    _, whose = served({0: 99.0}, 80)
    assert whose.count(0) < 30, "not yet"


def test_the_most_urgent_of_several_comes_first() -> None:
    _, whose = served({0: -1.0, 1: -2.0}, 80)
    assert [whose.count(user) for user in range(3)] == [0, 60, 20]
    _, whose = served({0: -2.0, 1: -3.0, 2: -1.0}, 80)
    assert whose == [1] * 80, "nobody else's time is owed"


def test_nobody_stalls_after_an_urgent_time() -> None:
    device, _ = served({0: 0.0}, 80)
    assert device.in_order({0: {A}, 1: {B}, 2: {C}})[0] == 0


def test_parts_of_nobody() -> None:
    assert parts_of({}) == {}
