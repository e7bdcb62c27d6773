"""Which models leave the memory so that another one can come. Pure; owned by the event loop."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from omlx_server.core.memory.ledger import in_words

# Of the limit: weights may take so much, the rest is for conversations.
WEIGHTS_SHARE = 0.85
# And this with what answers under way need, which no load may cut off.
_HELD_SHARE = 0.95


@dataclass(frozen=True, slots=True)
class Resident:
    """A model that is loaded: `nbytes` of weights, and `live` ones that its requests need. Times
    are time.monotonic(); a `ttl` of 0 is none."""

    key: str
    nbytes: int
    used: float
    users: int = 0
    live: int = 0
    pinned: bool = False
    ttl: float = 0.0


@dataclass(frozen=True, slots=True)
class Rules:
    """`limit` bytes for all that the server holds, 0 where that is not watched; at most
    `max_loaded` models, 0 for any number."""

    limit: int = 0
    max_loaded: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """Who goes now, and who goes as soon as nobody uses it any more. `never` says why nothing would
    be enough."""

    unload: tuple[str, ...] = ()
    drain: tuple[str, ...] = ()
    never: str = ""


def plan(residents: Sequence[Resident], nbytes: int, rules: Rules) -> Plan:
    """Room for a model of so many bytes: those nobody uses go first, the longest unused before
    others, then those in use; pinned ones never."""
    stay = [r for r in residents if r.pinned]
    if not _fits([replace(r, live=0) for r in stay], nbytes, rules):
        return Plan(never=_why(stay, nbytes, rules))
    movable = sorted((r for r in residents if not r.pinned), key=lambda r: (r.users > 0, r.used))
    going = list[Resident]()
    while movable and not _fits([*stay, *movable], nbytes, rules):
        going.append(movable.pop(0))
    return Plan(
        unload=tuple(r.key for r in going if not r.users),
        drain=tuple(r.key for r in going if r.users),
    )


def expired(residents: Sequence[Resident], now: float) -> list[str]:
    """Those that nobody has used for longer than they may stay so."""
    return [
        r.key for r in residents if r.ttl and not (r.users or r.pinned) and now - r.used >= r.ttl
    ]


def _fits(residents: Sequence[Resident], nbytes: int, rules: Rules) -> bool:
    if rules.max_loaded and len(residents) >= rules.max_loaded:
        return False
    held = sum(r.nbytes for r in residents)
    live = sum(r.live for r in residents)
    fits = held + nbytes <= rules.limit * WEIGHTS_SHARE
    return not rules.limit or (fits and held + live + nbytes <= rules.limit * _HELD_SHARE)


def _why(pinned: Sequence[Resident], nbytes: int, rules: Rules) -> str:
    if rules.max_loaded and len(pinned) >= rules.max_loaded:
        return f"models.max_loaded is {rules.max_loaded}, and so many models are pinned"
    held = sum(r.nbytes for r in pinned)
    beside = f" beside pinned models of {in_words(held)}" if held else ""
    return (
        f"its weights are {in_words(nbytes)}{beside}, and of memory.limit "
        f"({in_words(rules.limit)}) weights may take {in_words(int(rules.limit * WEIGHTS_SHARE))}"
    )
