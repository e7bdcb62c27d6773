"""Crowds of several models (tests/engine/model_crowds.py): the first token of each request comes
within the time that was told, though models share the device."""

from collections.abc import Callable
from typing import Any

import pytest

from omlx_server.engine.turns import DeviceTurns
from tests.core.crowds import Late
from tests.engine.model_crowds import small_crowds

# Others came for another model after the time was told (45); all prompts of a model were urgent,
# so the earliest was not first (215); there were three models of which two had urgent prompts.
HARD = 45, 215, 1257


def test_nobody_waits_longer_than_told() -> None:
    for seed in (*range(20), *HARD):
        small_crowds(seed).live()


def without_urgency(in_order: Callable[..., Any]) -> Callable[..., Any]:
    return lambda turns, clients, urgent_from: in_order(turns, clients, {})


def test_a_model_whose_time_is_near_that_does_not_go_first_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(DeviceTurns, "in_order", without_urgency(DeviceTurns.in_order))
    with pytest.raises(Late):
        for seed in HARD:
            small_crowds(seed).live()
