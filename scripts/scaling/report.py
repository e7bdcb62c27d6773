"""The tables of docs/scaling.md, and which fleets are run for them."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from scripts.scaling.assumptions import (
    BASE,
    BLOCK_TOKENS,
    COARSE,
    FINE,
    GB,
    MEDIUM,
    TABLE,
    Assumptions,
)
from scripts.scaling.fleet import Fleet, Outcome, Setup, Tier
from scripts.scaling.index_bytes import measure
from scripts.scaling.routers import ROUTERS

Say = Callable[[str], None]

STICKY, OWN = "session sticky", "prefix, own bound 2"
HEAD = (
    "hits %",
    "of these cold",
    "first token s, median",
    "95 %",
    "turns an hour",
    "busy %",
    "busiest x",
    "clients MB/s",
    "store out MB/s",
    "store in MB/s",
    "not stored MB/s",
    "tree MB",
)
"""What is told of each fleet; docs/scaling.md says what it means."""


@dataclass(frozen=True, slots=True)
class Row:
    """A fleet of a table, by the words in its first columns."""

    words: tuple[str, ...]
    setup: Setup


def routed(machines: int, router: str, tier: Tier, boxes: int | None = None) -> Row:
    """A row of a table of routers and tiers."""
    scale = COARSE if machines > 100 else MEDIUM if machines > 1 else FINE
    words = (router, tier if boxes is None else f"{tier}, {boxes} box")
    return Row(words, Setup(machines, router, tier, scale, boxes=boxes))


ONE = [routed(1, STICKY, tier) for tier in (Tier.NONE, Tier.SSD, Tier.REMOTE)]
TEN = [routed(10, router, tier) for router in ROUTERS for tier in (Tier.SSD, Tier.REMOTE)]
THOUSAND = [
    *(routed(1000, router, Tier.SSD) for router in ROUTERS if router != "least loaded"),
    *(routed(1000, router, Tier.REMOTE) for router in ("round robin", STICKY, OWN)),
    routed(1000, STICKY, Tier.REMOTE, boxes=1),
]


_FEW_BITS = round(BASE.machine.kv_bytes_per_token / 3.88)
"""Turboquant at 4 bits: docs/kv-cache.md, tokens that 64 MiB hold."""
_SMALL = 10 * GB


def _machine(**changes: int) -> Assumptions:
    return replace(BASE, machine=replace(BASE.machine, **changes))


def _linked(rate: float) -> Assumptions:
    """Links of another rate, in bytes a second."""
    network = replace(BASE.network, machine_bytes_per_second=rate, store_bytes_per_second=rate)
    return replace(BASE, network=network)


def _what_if() -> Iterator[Row]:
    robin, shared = "round robin", Tier.REMOTE
    for words, router, tier, assumed in (
        ("as above", robin, shared, BASE),
        ("only what is evicted goes to the store", robin, Tier.REMOTE_EVICTED, BASE),
        ("an index of 500 GB", robin, shared, _machine(ssd_budget=500 * GB)),
        ("1 GbE", robin, shared, _linked(0.11 * GB)),
        ("keys and values in 4 bits", robin, shared, _machine(kv_bytes_per_token=_FEW_BITS)),
        ("as above", STICKY, Tier.SSD, BASE),
        ("Macs with 10 GB for keys and values", STICKY, Tier.SSD, _machine(room_bytes=_SMALL)),
        ("the same, shared store", STICKY, shared, _machine(room_bytes=_SMALL)),
        (
            "the same, 4 bits, own SSD",
            STICKY,
            Tier.SSD,
            _machine(room_bytes=_SMALL, kv_bytes_per_token=_FEW_BITS),
        ),
    ):
        yield Row((words, router), Setup(10, router, tier, MEDIUM, assumed))


def _scales() -> Iterator[Row]:
    """One fleet, with blocks as small as those of each table, for one and the same time."""
    for router in ("round robin", STICKY):
        for scale in (FINE, MEDIUM, COARSE):
            same = replace(MEDIUM, unit=scale.unit, block=scale.block)
            words = (f"blocks of {scale.block:,} tokens", router)
            yield Row(words, Setup(10, router, Tier.SSD, same))


WHAT_IF, SCALES = list(_what_if()), list(_scales())
FLEETS: Mapping[str, tuple[tuple[str, ...], Sequence[Row]]] = {
    "one": (("router", "cold tier"), ONE),
    "ten": (("router", "cold tier"), TEN),
    "thousand": (("router", "cold tier"), THOUSAND),
    "what-if": (("what is changed", "router"), WHAT_IF),
    "scales": (("how finely", "router"), SCALES),
}
SECTIONS = ("assumptions", "indexes", *FLEETS)


def section(name: str, say: Say) -> str:
    """The table of a section. `say` is told each row of fleets as it comes."""
    if name == "assumptions":
        return table(("what", "figure", "where it comes from"), TABLE)
    if name == "indexes":
        return _indexes()
    head, rows = FLEETS[name]
    lines = []
    for row in rows:
        lines.append(cells(row, Fleet(row.setup).run()))
        say(" | ".join(lines[-1]))
    return table((*head, *HEAD), lines, numbers_from=len(head))


def cells(row: Row, outcome: Outcome) -> tuple[str, ...]:
    """One line of a table of fleets."""
    has_store = row.setup.tier in (Tier.REMOTE, Tier.REMOTE_EVICTED)
    has_tier = row.setup.tier is not Tier.NONE
    return (
        *row.words,
        f"{outcome.hit_rate:.1%}".rstrip("%"),
        f"{outcome.cold_tokens / max(1, outcome.hit_tokens):.1%}".rstrip("%"),
        f"{outcome.first_token(0.5):.1f}",
        f"{outcome.first_token(0.95):.1f}",
        f"{outcome.turns_per_user_hour:.0f}",
        f"{outcome.busy:.0%}".rstrip("%"),
        f"{outcome.share:.1f}",
        _megabytes(outcome.client_bytes, True),
        _megabytes(outcome.store_read, has_store),
        _megabytes(outcome.store_written, has_store),
        _megabytes(outcome.dropped, has_tier),
        _megabytes(outcome.tree_tokens * 4, bool(outcome.tree_places)),
    )


def table(
    head: Sequence[str], rows: Iterable[Sequence[str]], numbers_from: int | None = None
) -> str:
    """A Markdown table, whose columns from `numbers_from` on are numbers."""
    first = len(head) if numbers_from is None else numbers_from
    lines = ["---"] * first + ["---:"] * (len(head) - first)
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, lines, *rows))


def _megabytes(nbytes: float, is_there: bool) -> str:
    if not is_there:
        return "-"
    return f"{nbytes / 1e6:,.0f}" if nbytes >= 10e6 else f"{nbytes / 1e6:.1f}"


def _indexes() -> str:
    """Rounded, since the sizes of dicts differ by some bytes from run to run."""
    measured, machine = measure(), BASE.machine
    block = BLOCK_TOKENS * machine.kv_bytes_per_token
    rows = []
    for words, nbytes, room in (
        ("a block in memory", measured.hot, machine.room_bytes),
        ("a block in the cold tier", measured.cold, machine.ssd_budget),
    ):
        count = room // block
        share = nbytes / block
        rows.append(
            (
                words,
                f"{round(nbytes, -2):,.0f}",
                f"{count:,}",
                f"{count * nbytes / 1e6:.0f}",
                f"{share:.2%}",
            )
        )
    head = ("what", "bytes of index", "blocks of a machine", "MB of index", "of what it stands for")
    return table(head, rows, numbers_from=1)
