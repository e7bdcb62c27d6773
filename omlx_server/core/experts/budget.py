"""Decides whether a model's experts stay on the disk, and how many have room in memory. Pure."""

from dataclasses import dataclass
from typing import Literal

from omlx_server.core.experts.files import ExpertSizes
from omlx_server.core.memory.fit import WEIGHTS_SHARE

ExpertsSetting = Literal["auto", "memory", "disk"]
# Weights and experts in memory may take so much of the limit; the rest is for conversations.
_SHARE = 0.7


@dataclass(frozen=True, slots=True)
class ExpertBudget:
    """The experts in memory."""

    slots: int  # of so many `experts` of a layer
    experts: int
    nbytes: int  # of all weights in memory


def budget_of(
    weights: int,
    sizes: ExpertSizes | None,
    limit: int,
    setting: ExpertsSetting | None = None,
    most_bytes: int | None = None,
) -> ExpertBudget | None:
    """Return the budget of a model with `weights` bytes, or None for all its experts. No setting is
    "auto"; `most_bytes` bounds those of experts."""
    fits = weights <= WEIGHTS_SHARE * limit
    if sizes is None or setting == "memory" or (setting != "disk" and fits):
        return None
    rest = weights - sizes.nbytes * sizes.experts
    room = int(_SHARE * limit) - rest if most_bytes is None else most_bytes
    slots = min(max(1, room // sizes.nbytes), sizes.experts)
    return ExpertBudget(slots, sizes.experts, rest + slots * sizes.nbytes)
