"""Decides which models leave memory: for room, or at the end of their ttl. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from omlx_server.core.memory.ledger import in_words

# Share of the limit for weights; the rest is for conversations.
WEIGHTS_SHARE = 0.85
# Share for weights and running requests, which no load may cut off.
_HELD_SHARE = 0.95


@dataclass(frozen=True, slots=True)
class Resident:
    """A loaded model: bytes of weights and of requests (`live`), last use by time.monotonic(),
    leases. Unused, it leaves after `ttl` seconds; 0 for never."""

    key: str
    nbytes: int
    used: float
    users: int = 0
    live: int = 0
    pinned: bool = False
    ttl: float = 0.0


@dataclass(frozen=True, slots=True)
class Rules:
    """The most bytes and models in memory; 0 for no limit."""

    limit: int = 0
    max_loaded: int = 0


@dataclass(frozen=True, slots=True)
class ResidencyPlan:
    """Keys of the models that leave; or `never`, why that would not suffice."""

    unloaded_keys: tuple[str, ...] = ()
    never: str = ""


def plan_unloads(residents: Sequence[Resident], nbytes: int, rules: Rules) -> ResidencyPlan:
    """Return which models leave for `nbytes` of weights: the longest unused first."""
    stay = [r for r in residents if r.pinned]
    if not _fits([replace(r, live=0) for r in stay], nbytes, rules):
        return ResidencyPlan(never=_why_it_never_fits(stay, nbytes, rules))
    movable = sorted((r for r in residents if not r.pinned), key=lambda r: (r.users > 0, r.used))
    leaving = list[Resident]()
    while movable and not _fits([*stay, *movable], nbytes, rules):
        leaving.append(movable.pop(0))
    return ResidencyPlan(tuple(r.key for r in leaving))


def longest_unused(residents: Sequence[Resident]) -> Resident | None:
    idle = (resident for resident in residents if not resident.users)
    return min(idle, key=lambda resident: resident.used, default=None)


def expired(residents: Sequence[Resident], now: float) -> list[str]:
    """Return the keys of models that were unused for their ttl."""
    return [
        r.key for r in residents if r.ttl and not (r.users or r.pinned) and now - r.used >= r.ttl
    ]


def _fits(residents: Sequence[Resident], nbytes: int, rules: Rules) -> bool:
    if rules.max_loaded and len(residents) >= rules.max_loaded:
        return False
    if not rules.limit:
        return True
    weights = nbytes + sum(r.nbytes for r in residents)
    live = sum(r.live for r in residents)
    return weights <= rules.limit * WEIGHTS_SHARE and weights + live <= rules.limit * _HELD_SHARE


def _why_it_never_fits(pinned: Sequence[Resident], nbytes: int, rules: Rules) -> str:
    if rules.max_loaded and len(pinned) >= rules.max_loaded:
        return f"models.max_loaded is {rules.max_loaded}, and so many models are pinned"
    weights = sum(r.nbytes for r in pinned)
    beside = f" beside pinned models of {in_words(weights)}" if weights else ""
    return (
        f"its weights are {in_words(nbytes)}{beside}, and of memory.limit "
        f"({in_words(rules.limit)}) weights may take {in_words(int(rules.limit * WEIGHTS_SHARE))}"
    )
