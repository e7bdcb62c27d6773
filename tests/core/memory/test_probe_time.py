"""Probes of a model are run where there is time for all of a part."""

import pytest

from omlx_server.core.memory.kv import Decode, PrefillShape
from omlx_server.core.memory.probe_time import Probe, ProbeTime


@pytest.mark.parametrize(
    ("probes", "runs", "tokens"),
    [
        ([PrefillShape(1, 64, 2000)], 1, 64),
        ([PrefillShape(4, 16, 0), PrefillShape(1, 8, 0)], 2, 144),
        ([Decode(4, 1000)], 1, 12),  # one to join, one measured, and one more
    ],
)
def test_a_part_is_allowed_to_the_last_token(probes: list[Probe], runs: int, tokens: int) -> None:
    assert ProbeTime(float(tokens), 1.0).allows(probes, runs)
    assert not ProbeTime(tokens - 0.5, 1.0).allows(probes, runs)


def test_nothing_is_allowed_where_nothing_is_left() -> None:
    assert not ProbeTime(-1.0, 0.0).allows([])
