"""Pins: what they name stays in memory and in the cold index, whatever presses; no more than that,
and no longer."""

from collections import Counter

import pytest

from omlx_server.core.blocks.block import CacheLayout, PayloadId
from omlx_server.core.blocks.keys import BlockKey, chain
from omlx_server.core.blocks.pins import Pin
from omlx_server.core.prefix_cache.eviction import HotBudget
from omlx_server.core.prefix_cache.prefix_cache import PrefixCache
from tests.core import cache_walk
from tests.core.blocks.serving import STATE_BYTES, every_layout, press_out, serve, start
from tests.core.cache_walk import BLOCK, Kept, Tokens
from tests.core.cold import chains
from tests.core.simulator import HYBRID, KV, RECURRENT, ROOMY

STEPS = 3_000  # times 9 seeds
PROMPT = tuple(range(30))  # seven blocks of four tokens, one token, and the one that is not stored
NOW = 5.0
with_state = pytest.mark.parametrize("layout", [HYBRID, RECURRENT], ids=["hybrid", "recurrent"])


def pin(cache: PrefixCache, prompt: Tokens, salt: bytes = b"") -> Pin:
    made = cache.pin(prompt, salt, NOW)
    assert made is not None
    return made


def unpin(cache: PrefixCache, made: Pin) -> Pin | None:
    removed = cache.pins.remove(made.id)
    cache.release_pin(made)
    return removed


def leases(cache: PrefixCache) -> int:
    blocks = list(cache.index.blocks())
    return sum(b.leases + sum(c.leases for c in b.checkpoints.values()) for b in blocks)


# -- in memory ---------------------------------------------------------------------------


@every_layout
def test_a_pinned_prompt_is_there_until_the_pin_has_gone(layout: CacheLayout) -> None:
    cache = PrefixCache(layout, "model", ROOMY)
    serve(cache, PROMPT)
    made = pin(cache, PROMPT)
    assert (made.tokens, made.created, made.root) == (28, NOW, cache.root(b""))
    serve(cache, tuple(range(50, 90)))
    press_out(cache)
    assert serve(cache, PROMPT) == (29 if layout.checkpointed else 28)
    cache.budget = HotBudget(0, 0)
    assert (unpin(cache, made), cache.pins.remove(made.id)) == (made, None)
    assert (leases(cache), cache.pinned.nbytes, len(cache.index)) == (0, 0, 0)


@every_layout
def test_a_pin_may_come_before_its_prompt(layout: CacheLayout) -> None:
    cache = PrefixCache(layout, "model", ROOMY)
    made = pin(cache, PROMPT)
    assert (cache.pinned.of(made), leases(cache)) == ([], 0)
    for end in (10, 30):  # its blocks come little by little
        serve(cache, PROMPT[:end])
        press_out(cache)
    assert [cache.record(held).key for held in cache.pinned.of(made)] == list(made.keys)
    assert serve(cache, PROMPT) >= 28


def test_a_prompt_shorter_than_a_block_can_not_be_pinned() -> None:
    cache = PrefixCache(KV, "model", ROOMY)
    assert cache.pin(PROMPT[:4], b"", NOW) is None
    assert pin(cache, PROMPT[:5]).tokens == 4
    assert len(cache.pins) == 1


@every_layout
def test_blocks_of_two_pins_stay_as_long_as_one_of_them(layout: CacheLayout) -> None:
    cache = PrefixCache(layout, "model", ROOMY)
    other = (*PROMPT[:17], *range(60, 70))
    serve(cache, PROMPT)
    serve(cache, other)
    one, two = pin(cache, PROMPT), pin(cache, other)
    held = [*cache.pinned.of(one), *cache.pinned.of(two)]
    assert cache.pinned.nbytes == sum(each.size.nbytes for each in set(held))
    assert len(set(held)) == len(held) - 4
    unpin(cache, one)
    press_out(cache)
    assert serve(cache, other) >= 24
    assert cache.pinned.nbytes == sum(each.size.nbytes for each in cache.pinned.of(two))
    unpin(cache, two)
    assert (leases(cache), cache.pinned.nbytes) == (0, 0)


@every_layout
def test_a_pin_larger_than_half_the_memory_leaves_half_of_it_to_others(layout: CacheLayout) -> None:
    cache = PrefixCache(layout, "model", HotBudget(1000, 1000, lattice_start=16))
    long = tuple(range(100, 190))
    made = pin(cache, long)
    serve(cache, long)
    assert 400 < cache.pinned.nbytes <= 500
    assert cache.pinned.of(made)[0] is cache.index.block(made.keys[0]), "its head is held"
    serve(cache, PROMPT)
    assert serve(cache, PROMPT) == 29
    assert layout.checkpointed or serve(cache, long) >= 48
    unpin(cache, made)
    assert (leases(cache), cache.pinned.nbytes) == (0, 0)


@every_layout
def test_after_a_reset_what_is_computed_anew_is_held(layout: CacheLayout) -> None:
    cache = PrefixCache(layout, "model", ROOMY)
    serve(cache, PROMPT)
    made = pin(cache, PROMPT)
    cache.reset()
    assert (len(cache.index), cache.pinned.nbytes) == (0, 0)
    assert serve(cache, PROMPT) == 0
    press_out(cache)
    assert serve(cache, PROMPT) >= 28
    unpin(cache, made)
    assert leases(cache) == 0


@every_layout
def test_a_tenant_pins_nothing_of_another(layout: CacheLayout) -> None:
    cache = PrefixCache(layout, "model", ROOMY)
    serve(cache, PROMPT, b"a")
    assert cache.pinned.of(pin(cache, PROMPT, b"b")) == []
    press_out(cache)
    assert serve(cache, PROMPT, b"a") == 0


@with_state
def test_a_pin_that_takes_the_place_of_another_lets_go_of_what_it_held(
    layout: CacheLayout,
) -> None:
    cache = PrefixCache(layout, "model", ROOMY)
    serve(cache, PROMPT[:18])
    pin(cache, PROMPT)
    serve(cache, PROMPT)
    unpin(cache, pin(cache, PROMPT))
    assert len(cache.pins) == 0
    assert (leases(cache), cache.pinned.nbytes) == (0, 0)


@every_layout
def test_a_block_in_use_at_a_reset_stays_pinned(layout: CacheLayout) -> None:
    cache = PrefixCache(layout, "model", ROOMY)
    serve(cache, PROMPT)
    made = pin(cache, PROMPT)
    handle, _ = start(cache, PROMPT)
    cache.reset()
    cache.leave(handle)
    press_out(cache)
    assert all(key in cache.index for key in made.keys[:7])


@with_state
def test_pinned_states_leave_room_for_those_of_others(layout: CacheLayout) -> None:
    cache = PrefixCache(layout, "model", HotBudget(1 << 20, 4 * STATE_BYTES))
    for number in range(8):
        prompt = tuple(range(100 * number, 100 * number + 30))
        serve(cache, prompt)
        pin(cache, prompt)
    serve(cache, tuple(range(900, 940)))
    assert serve(cache, tuple(range(900, 940))) == 39


# -- in the cold index -------------------------------------------------------------------


class ColdWalk(chains.Walk):
    """The walk of the index, with pins that come and go, before and after their entries: what they
    name is not evicted, nor what it follows."""

    held = 0

    def step(self) -> None:
        pins = self.index.pins
        if self.rng.random() < 0.05:
            id = str(self.rng.randrange(4))
            gone = pins.remove(id)
            self.index.release_pinned(gone.keys if gone else ())
            if gone is None:
                keys = tuple(self._any() for _ in range(self.rng.randrange(1, 4)))
                pins.add(Pin(id, "model", keys[0], 0, NOW, keys))
        self.held += any(key in self.index for each in pins.all() for key in each.keys)
        super().step()

    def take(self) -> None:
        key = self._any()
        there = key in self.index and not self.leases.get(key) and key not in self.index.pins
        assert [entry.key for entry in self.index.take(key)] == [key] * there
        if there:
            self._drop(key)

    def restart(self) -> None:
        pins = self.index.pins
        super().restart()
        self.index.pins = pins

    def _seen(self) -> dict[BlockKey, chains.Seen]:
        seen = super()._seen()
        for key, each in seen.items():
            each.leases += key in self.index.pins
        return seen


@pytest.mark.parametrize("seed", range(3))
def test_the_index_evicts_like_the_naive_one_that_holds_what_is_pinned(seed: int) -> None:
    walk = ColdWalk(seed)
    for _ in range(STEPS):
        walk.step()
    assert min(walk.evicted, walk.refused, walk.held) > 200, "a walk that hardly goes anywhere"


# -- at random ---------------------------------------------------------------------------


class HotWalk(cache_walk.Walk):
    """The walk of the prefix cache with pins. In every other one there is room for all of them, so
    that nothing which is pinned may ever go."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.ample = seed // 3 % 2 == 0
        self.limit = 50_000 if self.ample else self.rng.choice([50, 150, 400])
        budget = HotBudget(2 * self.limit, 4 * self.limit, buffers=1000, lattice_start=4)
        self.cache = PrefixCache(self.cache.layout, "model", budget)
        self.key_of: dict[PayloadId, BlockKey] = {}
        self.entry: set[PayloadId] = set()
        self.exempt: set[PayloadId] = set()
        self.pressed = 0

    def step(self) -> None:
        if self.rng.random() < 0.08:
            self.rng.choice([self.pin, self.unpin])()
            self._take_evicted()
        super().step()
        held = [x for each in self.cache.pins.all() for x in self.cache.pinned.of(each)]
        self.entry = {each.id for each in held}

    def pin(self) -> None:
        """Never the same blocks twice: a pin that takes the place of another is tested above."""
        tokens, salt = self._tokens(), self.rng.choice(cache_walk.SALTS)
        keys = chain(self.cache.root(salt), tokens[:-1], BLOCK)
        same = [each.keys[: each.tokens // BLOCK] for each in self.cache.pins.all()]
        if len(same) > 3 or (*keys,) in same:
            return
        made = self.cache.pin(tokens, salt, NOW)
        assert (made is None) == (len(tokens) <= BLOCK)
        assert made is None or list(made.keys[: len(keys)]) == keys

    def unpin(self) -> None:
        self.entry = set()
        for each in list(self.cache.pins.all())[:1]:
            assert unpin(self.cache, each) is each

    def reset(self) -> None:
        """What is in use stays, and is not held any more."""
        self.entry, self.exempt = set(), set(self.kept)
        super().reset()

    def check(self) -> None:
        super().check()
        expected = Counter(id(held) for each in self.prefills for held in each.handle.leased)
        held = [x for pin in self.cache.pins.all() for x in self.cache.pinned.of(pin)]
        unique = {id(each): each for each in held}
        assert self.cache.pinned.nbytes == sum(each.size.nbytes for each in unique.values())
        assert self.cache.pinned.nbytes <= self.limit
        expected.update(unique.keys())
        for there in self.cache.index.by_depth():
            assert there.leases == expected[id(there)], "a lease of nobody"

    def check_given_back(self) -> None:
        for each in self.cache.pins.all():
            unpin(self.cache, each)
        self.entry, self.exempt = set(), set(self.kept)
        super().check_given_back()
        assert self.cache.pinned.nbytes == 0

    def _keep(self, id: PayloadId | None, kept: Kept) -> None:
        held = self.cache.index.entry(id) if id is not None else None
        if id is not None:  # it may have gone at once
            self.key_of[id] = self.cache.record(held).key if held else BlockKey(b"")
        super()._keep(id, kept)

    def _take_evicted(self) -> None:
        before = set(self.kept)
        super()._take_evicted()
        gone = before - set(self.kept)
        assert not gone & self.entry, "what a pin holds was evicted"
        keys = {id: self.key_of.pop(id) for id in gone}
        for id in gone - self.exempt if self.ample else ():
            once_more = keys[id] in self.key_of.values()  # a state may be there in two siblings
            assert once_more or keys[id] not in self.cache.pins, "what is pinned was evicted"
        self.pressed += bool(gone and self.entry)


@pytest.mark.parametrize("seed", range(6))
def test_whatever_presses_what_is_pinned_stays_and_nothing_else_does(seed: int) -> None:
    walk = HotWalk(seed)
    for number in range(STEPS):
        walk.step()
        if number % 3 == 0:
            walk.check()
    walk.check_given_back()
    assert min(walk.hits, walk.evictions, walk.pressed) > 0, "a walk that hardly goes anywhere"
