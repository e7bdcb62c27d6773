"""Messages as units that go or stay together."""

import pytest

from omlx_server.text.overflow import front_length, units_of

ROLES = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}


@pytest.mark.parametrize(
    ("pattern", "front", "groups"),
    [
        ("u", 0, ["u0"]),
        ("su", 1, ["u0"]),
        ("ssuaua", 2, ["u0", "a0", "u1", "a1"]),
        ("suattatau", 1, ["u0", "att0", "at0", "a0", "u1"]),
        ("uuau", 0, ["uu0", "a0", "u1"]),
        ("uasu", 0, ["u0", "as0", "u1"]),
        ("usau", 0, ["us0", "a0", "u1"]),
        ("au", 0, ["a0", "u1"]),
        ("s", 1, []),
        ("tta", 0, ["tt0", "a0"]),
    ],
)
def test_groups(pattern: str, front: int, groups: list[str]) -> None:
    messages = [{"role": ROLES[c], "content": c} for c in pattern]
    units = units_of(messages, [ord(message["content"]) for message in messages])
    assert front_length(messages) == front
    assert ["".join(pattern[p] for p in u.messages) + str(u.turn) for u in units] == groups
    assert sum(unit.cost for unit in units) == sum(map(ord, pattern[front:]))
    for unit, group in zip(units, groups, strict=True):
        assert unit.head == group.startswith("u")
        assert unit.asks == bool(set(group) & {"u", "t"})
