"""Whether experts stay on the disk, and how many have room."""

import pytest

from omlx_server.core.experts.budget import ExpertBudget, ExpertsSetting, budget_of
from omlx_server.core.experts.files import ExpertSizes

SIZES = ExpertSizes(nbytes=100, experts=64)  # 6,400 bytes, beside 600 of others
WEIGHTS = 7000


@pytest.mark.parametrize(
    ("limit", "setting", "most", "slots"),
    [
        (10_000, "auto", None, None),  # it fits
        (8000, "auto", None, 50),  # 70 % of 8000, without 600
        (8000, "memory", None, None),
        (8000, "auto", 1000, 10),
        (10_000, "disk", None, 64),
        (10_000, "disk", 1000, 10),
        (2000, "auto", None, 8),
        (500, "auto", None, 1),
        (10_000, "disk", 0, 1),
        (10_000, "disk", 10**9, 64),
    ],
)
def test_what_has_room(
    limit: int, setting: ExpertsSetting, most: int | None, slots: int | None
) -> None:
    budget = budget_of(WEIGHTS, SIZES, limit, setting, most)
    assert budget == (None if slots is None else ExpertBudget(slots, 64, 600 + slots * 100))


def test_a_model_without_experts_has_no_budget() -> None:
    assert budget_of(WEIGHTS, None, 1000, "disk") is None
