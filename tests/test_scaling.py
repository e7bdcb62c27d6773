"""The simulation of fleets: what must hold of any, and the page that it writes."""

import random
import re
from dataclasses import replace
from functools import cache

import pytest

from omlx_server.core.blocks.block import Size
from omlx_server.core.blocks.cache_layout import CacheLayout, LayerKind
from omlx_server.core.blocks.keys import BlockKey, chain
from omlx_server.core.prefix_cache.eviction import HotBudget
from omlx_server.core.prefix_cache.prefix_cache import PrefixCache
from scripts.scaling import page, report
from scripts.scaling.assumptions import BASE, GB, TABLE, Assumptions, Scale
from scripts.scaling.cold import Cold
from scripts.scaling.events import Events, Link
from scripts.scaling.fleet import Fleet, Outcome, Setup, Tier
from scripts.scaling.index_bytes import measure
from scripts.scaling.routers import ROUTERS, Bounds, Loads, PrefixAware
from scripts.scaling.store import SharedStore
from scripts.scaling.traffic import Piece, Request, Session

SHORT = Scale(unit=256, block=512, ramp=60.0, warm=60.0, end=400.0)
SMALL = replace(BASE, machine=replace(BASE.machine, room_bytes=8 * GB, ssd_budget=8 * GB))
ROBIN, STICKY = "round robin", "session sticky"


@cache
def fleet_of(
    machines: int, router: str, tier: Tier, assumed: Assumptions = SMALL
) -> tuple[Fleet, Outcome]:
    fleet = Fleet(Setup(machines, router, tier, SHORT, assumed))
    return fleet, fleet.run()


@pytest.mark.parametrize("tier", Tier)
@pytest.mark.parametrize("router", [ROBIN, STICKY, report.OWN])
def test_hits_never_exceed_what_was_asked_before(router: str, tier: Tier) -> None:
    fleet, outcome = fleet_of(4, router, tier)
    assert outcome.requests > 40 and outcome.hit_tokens > 0
    assert [r for r in fleet.requests if r.cached > r.known or r.cold > r.cached] == []
    answered = [r for r in fleet.requests if r.first_token is not None]
    not_hit = sum(r.length - r.cached for r in answered)
    assert sum(server.computed for server in fleet.servers) >= not_hit > 0


@pytest.mark.parametrize("tier", Tier)
def test_the_books_of_every_machine_are_right(tier: Tier) -> None:
    fleet, _ = fleet_of(4, ROBIN, tier)
    evicted = 0
    for server in fleet.servers:
        server.cache.index.check_invariants()
        one_block = 512 * SMALL.machine.kv_bytes_per_token
        assert server.cache.index.nbytes <= SMALL.machine.room_bytes + one_block
        evicted += server.cache.stats.evicted_blocks
        if server.cold is not None:
            server.cold.index.check_invariants()
    assert evicted, "the memory was large enough for everything"


def test_with_one_machine_all_routers_are_the_same() -> None:
    outcomes = [fleet_of(1, router, Tier.SSD)[1] for router in ROUTERS]
    first = outcomes[0]
    assert first.requests > 10
    for outcome in outcomes:  # only those that have a tree tell of one
        assert replace(outcome, tree_tokens=0, tree_places=0) == first


@pytest.mark.parametrize(("machines", "gain"), [(1, 0.0), (2, 0.05), (4, 0.1)])
def test_a_shared_store_never_lowers_the_hits(machines: int, gain: float) -> None:
    """With a router that looks at no loads: else sessions are elsewhere, with other neighbours."""
    alone, shared = (fleet_of(machines, ROBIN, tier)[1] for tier in (Tier.NONE, Tier.REMOTE))
    assert shared.hit_rate >= alone.hit_rate + gain
    assert (shared.cold_tokens > 0) == (gain > 0)


def test_a_run_is_the_same_each_time_and_another_with_another_seed() -> None:
    fleet, outcome = fleet_of(4, ROBIN, Tier.SSD)
    assert Fleet(fleet.setup).run() == outcome
    assert Fleet(replace(fleet.setup, seed=2)).run().prompt_tokens != outcome.prompt_tokens


# --- Parts ---------------------------------------------------------------------------------------


def test_loads_know_the_least_and_the_most() -> None:
    rng, loads = random.Random(1), Loads(5, random.Random(2))
    for _ in range(2000):
        machine = rng.randrange(5)
        loads.add(machine, -1 if loads.of[machine] and rng.random() < 0.5 else 1)
        assert (loads.least, loads.most) == (min(loads.of), max(loads.of))
        assert loads.of[loads.any_of_least()] == loads.least


def _request(*pieces: Piece) -> Request:
    session = Session(0, random.Random(1), 1, list(pieces), lambda: None)
    tokens = tuple(token for piece in pieces for token in piece.tokens)
    return Request(session, pieces, Piece((0,)), 1, 0.0, tokens)


@pytest.mark.parametrize(
    ("bounds", "goes_home"),
    [
        (Bounds(absolute=2), False),
        (Bounds(absolute=9), True),
        (Bounds(absolute=2, of_its_own=True), True),
        (Bounds(absolute=9, threshold=0.95), False),
    ],
)
def test_a_prefix_is_followed_within_the_bounds(bounds: Bounds, goes_home: bool) -> None:
    """Another machine has three requests, the one with the prefix has one, all others none."""
    loads = Loads(50, random.Random(3))
    router = PrefixAware(loads, bounds)
    system, question = Piece(tuple(range(90))), Piece(tuple(range(90, 100)))
    home = router.choose(_request(system, question))
    loads.add(home, 1)
    for _ in range(3):
        loads.add((home + 1) % 50, 1)
    answer = Piece(tuple(range(100, 110)))
    assert (router.choose(_request(system, answer)) == home) == goes_home
    assert router.tokens == 110


def test_a_link_carries_one_transfer_after_the_other() -> None:
    events, link, ends = Events(), Link(rate=10.0), list[float]()
    for nbytes in (20, 30):
        events.at(link.take(1.0, nbytes), lambda: ends.append(events.now))
    events.run(6.0)
    assert (ends, link.carried) == ([3.0], 50), "what ends at the end is not run any more"


def test_a_prompt_waits_for_a_slow_store_as_long_as_computing_takes() -> None:
    """40 blocks of one token come, one a second; a token takes half a second to compute."""
    events, size = Events(), Size(10**6, 1)
    network = replace(BASE.network, machine_bytes_per_second=1e6)
    store = SharedStore(events, network, 1, size.nbytes)
    cold = Cold(events, BASE.machine, store, lambda record: size, lambda: None)
    layout = CacheLayout(frozenset({LayerKind.DELTA}), 1)
    cache = PrefixCache(layout, "model", HotBudget(10**9, 0), cold.index)
    cold.follow(cache)
    cache.read_ahead.rates.computed(16, 8.0)
    for key in chain(cache.root(b""), range(40), 1):
        store.put(key, size.nbytes)
    handle = cache.enter(tuple(range(40)), b"", ())
    cold.request()
    events.run(19.0)
    assert cache.must_wait(handle)
    events.run(21.0)
    assert not cache.must_wait(handle)
    assert cache.admit(handle).cached == 20
    cold.index.check_invariants()


def test_a_store_forgets_what_was_used_longest_ago() -> None:
    network = replace(BASE.network, store_bytes=30)
    store = SharedStore(Events(), network, 1, 10)
    one, two, three, four = (BlockKey(bytes([n])) for n in range(4))
    for key in (one, two, three):
        store.put(key, 10)
    assert store.get(one) == 10
    store.put(four, 10)
    assert [key for key in (one, two, three, four) if store.get(key)] == [one, three, four]


# --- The page ------------------------------------------------------------------------------------

NUMBER = re.compile(r"-|[\d,]+(\.\d+)?")


def _lines(name: str) -> list[list[str]]:
    table = page.table_of(page.PAGE.read_text(encoding="utf-8"), name)
    return [line.strip("| ").split(" | ") for line in table.splitlines()]


@pytest.mark.parametrize("name", report.FLEETS)
def test_the_page_has_the_rows_that_the_script_writes(name: str) -> None:
    words, rows = report.FLEETS[name]
    head, _, *lines = _lines(name)
    assert head == [*words, *report.HEAD]
    assert [tuple(line[: len(words)]) for line in lines] == [row.words for row in rows]
    for line in lines:
        assert len(line) == len(head)
        assert all(NUMBER.fullmatch(cell) for cell in line[len(words) :]), line


def test_the_page_has_the_assumptions_of_the_script() -> None:
    assert [tuple(line) for line in _lines("assumptions")[2:]] == list(TABLE)


def test_the_page_has_the_sizes_of_the_indexes() -> None:
    """Roughly: objects of another Python have other sizes."""
    _, _, hot, cold = _lines("indexes")
    measured = measure()
    for line, nbytes in ((hot, measured.hot), (cold, measured.cold)):
        assert float(line[1].replace(",", "")) == pytest.approx(nbytes, rel=0.5)


def test_a_row_of_the_page_is_what_the_script_writes_now() -> None:
    row = report.ONE[1]
    assert list(report.cells(row, Fleet(row.setup).run())) == _lines("one")[3]


def test_a_section_is_replaced_and_no_other() -> None:
    text = page.PAGE.read_text(encoding="utf-8")
    other = page.replaced(text, "one", "| a |")
    assert page.table_of(other, "one") == "| a |"
    assert page.table_of(other, "ten") == page.table_of(text, "ten")
    assert page.replaced(other, "one", page.table_of(text, "one")) == text
    with pytest.raises(ValueError, match="no section"):
        page.table_of(text, "eleven")
