"""Who leaves the memory for another model: by cases, and by chance against a plain search."""

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from omlx_server.engine.pool.entry import ResidencyPlan, Resident, Rules, expired, plan_unloads

NOBODY: tuple[Resident, ...] = ()


def resident(key: str, nbytes: int = 10, used: float = 0, **changes: object) -> Resident:
    return Resident(key, nbytes, used, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("rules", [Rules(), Rules(limit=1000), Rules(max_loaded=1)])
def test_the_first_model_finds_room(rules: Rules) -> None:
    assert plan_unloads(NOBODY, 850, rules) == ResidencyPlan()


def test_nobody_goes_where_there_is_room() -> None:
    there = [resident("a", 400, ttl=1, used=-100), resident("b", 400, users=3)]
    assert plan_unloads(there, 50, Rules(limit=1000, max_loaded=3)) == ResidencyPlan()


def test_without_a_limit_any_number_is_there() -> None:
    there = [resident(str(n), 1 << 40) for n in range(50)]
    assert plan_unloads(there, 1 << 50, Rules()) == ResidencyPlan()


def test_of_the_limit_a_part_is_kept_for_conversations() -> None:
    assert plan_unloads(NOBODY, 850, Rules(limit=1000)) == ResidencyPlan()
    never = plan_unloads(NOBODY, 851, Rules(limit=1000)).never
    assert never == ("its weights are 851 B, and of memory.limit (1 KB) weights may take 850 B")


def test_the_longest_unused_goes_first_and_no_more_than_needed() -> None:
    there = [resident("new", used=9), resident("old", used=1), resident("middle", used=5)]
    assert plan_unloads(there, 10, Rules(max_loaded=3)) == ResidencyPlan(("old",))
    assert plan_unloads(there, 10, Rules(max_loaded=2)) == ResidencyPlan(("old", "middle"))
    assert plan_unloads(there, 10, Rules(limit=40)) == ResidencyPlan(("old",))


def test_those_in_use_go_last_and_are_waited_for() -> None:
    there = [resident("busy", used=1, users=2), resident("idle", used=9)]
    assert plan_unloads(there, 10, Rules(max_loaded=2)) == ResidencyPlan(("idle",))
    assert plan_unloads(there, 10, Rules(max_loaded=1)) == ResidencyPlan(("idle", "busy"))


def test_pinned_ones_stay() -> None:
    there = [resident("pinned", used=1, pinned=True), resident("busy", used=5, users=1)]
    assert plan_unloads(there, 10, Rules(max_loaded=2)) == ResidencyPlan(("busy",))
    never = plan_unloads([*there, resident("idle")], 10, Rules(max_loaded=1)).never
    assert never == "models.max_loaded is 1, and so many models are pinned"
    never = plan_unloads(there, 80, Rules(limit=100)).never
    assert "its weights are 80 B beside pinned models of 10 B" in never


def test_whoever_was_not_used_for_its_time_has_expired() -> None:
    there = [
        resident("long ago", used=1, ttl=10),
        resident("just so", used=2, ttl=10),
        resident("not yet", used=2.1, ttl=10),
        resident("without a time", used=0),
        resident("in use", used=0, ttl=10, users=1),
        resident("pinned", used=0, ttl=10, pinned=True),
    ]
    assert expired(there, 12) == ["long ago", "just so"]
    assert expired([], 12) == []


def test_on_a_machine_that_is_very_short_whoever_is_not_in_use_leaves_soon() -> None:
    there = [
        resident("with a longer time", used=1, ttl=300),
        resident("with a shorter time", used=28, ttl=2),
        resident("without a time", used=2),
        resident("just used", used=2.1),
        resident("in use", used=0, users=1),
        resident("pinned", used=0, pinned=True),
    ]
    left = ["with a longer time", "with a shorter time", "without a time"]
    assert expired(there, 32, is_short=True) == left
    assert expired(there, 32) == ["with a shorter time"]


# -- by chance -------------------------------------------------------------------------------


def fits(there: Sequence[Resident], nbytes: int, rules: Rules) -> bool:
    together = 100 * (sum(r.nbytes for r in there) + nbytes) <= 85 * rules.limit
    return (together or rules.limit == 0) and (
        len(there) + 1 <= rules.max_loaded or rules.max_loaded == 0
    )


def search(there: Sequence[Resident], nbytes: int, rules: Rules) -> tuple[list[str], list[str]]:
    """The fewest of the line that stands for leaving. None when even all of it are too few."""
    idle = sorted((r.used, r.key) for r in there if not r.users and not r.pinned)
    busy = sorted((r.used, r.key) for r in there if r.users and not r.pinned)
    line = [key for _, key in [*idle, *busy]]
    for count in range(len(line) + 1):
        gone = line[:count]
        if fits([r for r in there if r.key not in gone], nbytes, rules):
            return gone[: len(idle)], gone[len(idle) :]
    raise LookupError


def test_any_plan_is_that_of_a_plain_search() -> None:
    chance = random.Random(1)
    seen = {"nobody": 0, "unload": 0, "drain": 0, "never": 0}
    for _ in range(3000):
        there = [
            Resident(
                f"m{number}",
                chance.randrange(1, 100),
                chance.random(),
                users=chance.choice([0, 0, 1, 4]),
                pinned=chance.random() < 0.2,
                ttl=chance.choice([0, 0.3]),
            )
            for number in range(chance.randrange(8))
        ]
        rules = Rules(chance.choice([0, 100, 200, 400]), chance.choice([0, 1, 2, 4]))
        nbytes = chance.randrange(1, 120)
        found = plan_unloads(there, nbytes, rules)
        try:
            unload, drain = search(there, nbytes, rules)
        except LookupError:
            seen["never"] += 1
            assert found.never and not found.unloaded_keys
            continue
        assert (list(found.unloaded_keys), found.never) == ([*unload, *drain], "")
        seen["drain" if drain else "unload" if unload else "nobody"] += 1
        left = {r.key for r in there if r.ttl and not r.users and not r.pinned}
        assert set(expired(there, 1.0)) == left & {r.key for r in there if r.used <= 0.7}
    assert min(seen.values()) > 100, seen


def test_answers_under_way_count_and_are_never_cut_off() -> None:
    """Weights would fit beside each other; what the first one's requests need does not."""
    rules = Rules(limit=1000)
    busy = Resident("busy", 300, 1.0, users=1, live=500)
    assert plan_unloads([busy], 300, rules) == ResidencyPlan(("busy",))
    assert plan_unloads([replace(busy, live=300)], 300, rules) == ResidencyPlan()
    pinned = replace(busy, pinned=True)
    assert plan_unloads([pinned], 300, rules) == ResidencyPlan(), (
        "it can't leave, and its answers will end"
    )
    idle = Resident("idle", 200, 9.0)
    assert plan_unloads([replace(busy, live=300), idle], 200, rules) == ResidencyPlan(("idle",))
