"""The policy of the prefix cache: what is looked up, waited for, kept and dropped.

Pure, owned by the mlx thread; payloads are elsewhere and go by id. A prefill passes through here:

    enter    queued: the blocks that it matches are leased, so that they are there when it runs
    admit    it has its turn: the restore is planned; or it waits for a block under way elsewhere
    leave    computed, cancelled or failed: leases and claims are given back

and what was computed comes back by `store`, which says under which id to keep a payload.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

from omlx_server.core.blocks.block import Block, Held, Match, PayloadId, Size, Worth
from omlx_server.core.blocks.index import BlockIndex
from omlx_server.core.blocks.keys import BlockKey, block_key, chain, root_key, state_key
from omlx_server.core.blocks.layout import CacheLayout
from omlx_server.core.blocks.lookup import Ticket
from omlx_server.core.blocks.pins import Pin, PinnedBlocks, Pins
from omlx_server.core.blocks.record import Part, Record
from omlx_server.core.blocks.restore import Found, RestorePlan, find
from omlx_server.core.cold.index import ColdIndex
from omlx_server.core.cold.recall import Prompt, Rates, candidates, reach, recall
from omlx_server.core.cold.waiting import Reading, comes_early
from omlx_server.core.prefix_cache.checkpoints import mark_branches, marks_of
from omlx_server.core.prefix_cache.cuts import Cutter
from omlx_server.core.prefix_cache.eviction import Budget, Eviction, Freed
from omlx_server.core.prefix_cache.misses import Misses
from omlx_server.core.prefix_cache.report import CacheReport, CacheStats, Dropped, Probe
from omlx_server.core.request import Miss


@dataclass(frozen=True, slots=True)
class Lookup:
    """What a prefill gets from the cache. `known` tokens were stored once in this form."""

    plan: RestorePlan | None
    miss: Miss
    known: int

    @property
    def cached(self) -> int:
        return self.plan.stop if self.plan else 0


def full_namespace(namespace: str, layout: CacheLayout) -> str:
    """What blocks of some weights are known by: their form and their size belong to it."""
    return f"{namespace}|{layout.format}|{layout.block_size}"


class PrefixCache:
    """Which prefixes are known, and what of them is kept."""

    keeps = True

    def __init__(
        self,
        layout: CacheLayout,
        namespace: str,
        budget: Budget,
        cold: ColdIndex | None = None,
        pins: Pins | None = None,
        pin_share: float = 0.5,
    ) -> None:
        """Pins hold so much of the budget at most."""
        self.layout = layout
        self.pins = Pins() if pins is None else pins
        self._cold = cold
        self.rates = Rates()
        self.stats = CacheStats()
        self.index = BlockIndex(layout.block_size)
        self.cutter = Cutter(layout)
        self._misses = Misses(self.index)
        self.namespace = full_namespace(namespace, layout)
        self._claims: dict[BlockKey, Ticket] = {}
        self._active: list[Ticket] = []
        self._eviction = Eviction(self.index, budget, self.stats, demotes=cold is not None)
        self.reading = Reading()
        most = int(budget.nbytes * pin_share), int(budget.checkpoint_bytes * pin_share)
        self._pinned = PinnedBlocks(self.index, self.pins, *most)

    @property
    def budget(self) -> Budget:
        """May change at any time; what is above a smaller one goes at once, unless it is held, or
        pinned: how much pins hold was decided at the start."""
        return self._eviction.budget

    @budget.setter
    def budget(self, budget: Budget) -> None:
        self._eviction.budget = budget
        self._eviction.shrink()

    def leave_cold(self) -> None:
        """There is no cold tier from now on: who waits for it goes on without."""
        self._cold = None
        self._eviction.stop_demoting()
        self.reading.end()

    # -- a prefill's way -----------------------------------------------------------------

    def enter(
        self, tokens: tuple[int, ...], salt: bytes, marks: Sequence[int], owner: bytes = b""
    ) -> Ticket:
        """A prompt was queued. `tokens` are those to be computed: all but the last."""
        root = root_key(self.namespace, salt)
        keys = chain(root, tokens, self.layout.block_size)
        ticket = Ticket(root, tokens, keys, owner, room=self._room)
        found = self._find(ticket)
        ticket.known = found.cached
        if self.layout.checkpointed:
            ticket.marks = marks_of(len(tokens), marks, self.budget.lattice_start)
        self._hold(ticket, found)
        if not self._ask(ticket, found):
            self._read_ahead(ticket, found)
        return ticket

    def must_wait(self, ticket: Ticket) -> bool:
        """Whether the next block that this prompt needs is being computed for another one, or is
        on its way from the cold tier."""
        if ticket.awaits_cold:
            return True
        if not self._claims or not ticket.reuses:
            return False
        known = bisect_left(ticket.keys, True, key=lambda key: key not in self.index)
        return known < len(ticket.keys) and ticket.keys[known] in self._claims

    def expected(self, ticket: Ticket) -> int:
        """How many tokens of a waiting prompt would be restored now. Does not modify."""
        return self._find(ticket).cached

    def hold(self, ticket: Ticket) -> int:
        """Hold again what there is for a waiting prompt. Returns how many tokens it gives."""
        found = self._find(ticket)
        self._hold(ticket, found)
        return found.cached

    def admit(self, ticket: Ticket) -> Lookup:
        """The prompt's turn has come: plan its restore, claim what it will compute."""
        found = self._find(ticket)
        self._hold(ticket, found)
        self._claim(ticket, found.cached)
        if self.layout.checkpointed:
            mark_branches(ticket, found, self._active, self.layout.block_size)
        self._active.append(ticket)
        ticket.waiting = False
        self.stats.queried += len(ticket.tokens)
        self.stats.hit += found.cached
        self.stats.hit_cold += max(0, min(found.cached, ticket.promoted) - ticket.known)
        miss = self._misses.reason(ticket, found)
        self._misses.note(ticket)
        self.stats.misses[miss] += 1
        return Lookup(found.plan, miss, found.match.depth)

    def leave(self, ticket: Ticket) -> None:
        """The prompt is computed, cancelled or failed; who waited for it goes on by itself."""
        self._release(ticket)
        self.reading.stop(ticket)
        for key in ticket.claimed:
            if self._claims.get(key) is ticket:
                del self._claims[key]
        ticket.claimed = []
        if ticket in self._active:
            self._active.remove(ticket)
        ticket.waiting = True

    def let_go(self, ticket: Ticket) -> None:
        """The prompt has what it was restored from, and memory is short: it no longer holds the
        blocks. Should they go, what it computes from now on is not kept."""
        self._release(ticket)

    # -- what was computed ---------------------------------------------------------------

    def store_block(self, root: BlockKey, tokens: Sequence[int], size: Size) -> PayloadId | None:
        """Keep the last block of `tokens`. Returns its id; None when it is not needed."""
        id = self._noted(self.index.insert(root, tokens, size))
        self._eviction.shrink()
        return id

    def store_checkpoint(
        self, root: BlockKey, tokens: Sequence[int], size: Size, worth: Worth
    ) -> PayloadId | None:
        """Keep the state after `tokens`. Returns its id; None when it is not needed."""
        id = self._noted(self.index.add_checkpoint(root, tokens, size, worth))
        self._eviction.shrink()
        return id

    def path(self, ticket: Ticket) -> list[tuple[PayloadId, Record]]:
        """What is in memory of a prompt: blocks, parents first, and the states after which it goes
        on. The record of the last block may be of its first tokens only."""
        match = self.index.match(ticket.root, ticket.tokens)
        path = [(block.id, self.record(block)) for block in match.blocks]
        if match.partial is not None:
            record = self.record(match.partial)
            path.append((match.partial.id, replace(record, tokens=record.tokens[: match.shared])))
        # The last token is computed in any case: a state after it is for who goes on from there.
        for limit in (len(ticket.tokens) - 1, len(ticket.tokens)):
            state = find(match, self.layout, limit).state
            if state is not None:
                path.append((state.id, self.record(state)))
        return list(dict.fromkeys(path))

    def root(self, salt: bytes) -> BlockKey:
        return root_key(self.namespace, salt)

    def record(self, held: Held) -> Record:
        """What the cold tier has to know of a block or a checkpoint."""
        block = held if isinstance(held, Block) else held.block
        assert block.parent is not None
        if isinstance(held, Block):
            return Record(self.namespace, block.parent.key, block.start, block.tokens)
        tokens = block.tokens[: held.position - block.start]
        parent = block.parent.key
        return Record(self.namespace, parent, block.start, tokens, Part.STATE, int(held.worth))

    def take_demoted(self) -> list[tuple[PayloadId, Record]]:
        """What left the hot tier for the cold one since the last call. Comes before
        `take_evicted`, after which the payloads are gone."""
        return [(held.id, self.record(held)) for held in self._eviction.take_demoted()]

    # -- what comes from the cold tier ---------------------------------------------------

    def answered(self, question: int) -> None:
        """The cold tier's index now knows of what it has, or does not answer."""
        ticket = self.reading.answered(question)
        if ticket is not None:
            found = self._find(ticket)
            self._hold(ticket, found)  # also what has come meanwhile
            self._read_ahead(ticket, found)

    def promote(self, record: Record, size: Size) -> PayloadId | None:
        """A block or state has come from the cold tier. Returns the id under which to keep it;
        None when nobody waits for it any more, or it fits nowhere. One that comes before what it
        follows is read again."""
        readers = self.reading.take_readers(record.key)
        if not readers:
            return None
        root, tokens = readers[0].root, readers[0].tokens[: record.stop]
        id = self._noted(self._insert(record, root, tokens, size))
        early = [ticket for ticket in readers if id is None and comes_early(record, ticket)]
        self.reading.again(record, early)
        # Where sizes are known beforehand, no more is asked for than there is room.
        nbytes = 0 if self._cold is None or self._cold.listed else size.nbytes
        # Without an id it may have been computed meanwhile, and is held just so.
        held = self.index.held(id) if id is not None else self.index.block(record.key)
        for ticket in readers:
            if ticket not in early:
                if held is not None:
                    self.index.lease(held)
                self.reading.arrived(ticket, record, held, nbytes)
        self._eviction.shrink()
        return id

    def insert(
        self, record: Record, root: BlockKey, tokens: tuple[int, ...], size: Size
    ) -> PayloadId | None:
        """Keep a block or a state from elsewhere; `tokens` are all up to a state. Returns its id;
        None when it is known already, or when what it follows is not here."""
        id = self._noted(self._insert(record, root, tokens, size))
        self._eviction.shrink()
        return id

    def give_up(self, key: BlockKey, reason: str) -> None:
        """A block did not come from the cold tier: who waits for it goes on without it, and
        without what would have followed."""
        for ticket in self.reading.take_readers(key):
            self.reading.failed(ticket, key, reason)

    def make_room(self, nbytes: int, floor: int) -> Freed:
        """Let so many bytes go where they are needed for something else, but keep `floor`:
        superseded states first, then what was used longest ago. Less goes when the rest is held."""
        return self._eviction.make_room(nbytes, floor)

    def take_evicted(self) -> list[PayloadId]:
        """Ids whose payloads are to be dropped, since the last call."""
        return self._eviction.take_evicted()

    def probe(self, tokens: tuple[int, ...], salt: bytes) -> Probe:
        """What a prompt would get. Does not modify."""
        root = self.root(salt)
        match = self.index.match(root, tokens)
        cached = find(match, self.layout, len(tokens) - 1).cached
        keys = chain(root, tokens[:-1], self.layout.block_size)
        prompt = _prompt(root, tokens[:-1], keys, match, cached)
        recalled = self._recall(prompt)
        ends = [reach(prompt, record) for record in recalled[-1:]]
        cold = [(r.start, reach(prompt, r)) for r in recalled if r.part is Part.BLOCK]
        blocks = [(block.start, block.stop) for block in match.blocks]
        if match.partial is not None:
            blocks.append((match.partial.start, match.partial.start + match.shared))
        return Probe(
            tokens=len(tokens),
            cached=max([cached, *ends]),
            known=match.depth,
            blocks=tuple(blocks),
            cold=tuple(cold),
            checkpoints=tuple(sorted(match.states())),
        )

    def report(self) -> CacheReport:
        """The numbers as they are now."""
        index, stats = self.index, self.stats
        return CacheReport(
            nbytes=index.nbytes,
            budget=self.budget.nbytes,
            blocks=len(index),
            checkpoints=index.checkpoint_count,
            checkpoint_bytes=index.checkpoint_bytes,
            buffers=index.buffers,
            queried_tokens=stats.queried,
            hit_tokens=stats.hit,
            cold_hit_tokens=stats.hit_cold,
            misses=tuple((miss.value, count) for miss, count in stats.misses.items()),
            evicted_blocks=stats.evicted_blocks,
            evicted_checkpoints=stats.evicted_checkpoints,
            checkpointed=self.layout.checkpointed,
        )

    def reset(self, salt: bytes | None = None) -> Dropped:
        """Drop all that is not in use at this moment, of one salt if given. Pins hold what is
        computed from now on. Returns what there was."""
        root = None if salt is None else self.root(salt)
        there = self.index.by_depth(root)
        self._misses.forget(root)
        self._pinned.clear(root)
        self._eviction.forget(self.index.clear(root))
        self._hold_pinned(self.index.by_depth(root))  # what is in use has stayed
        blocks = sum(isinstance(held, Block) for held in there)
        nbytes = sum(held.size.nbytes for held in there)
        return Dropped(nbytes, blocks, len(there) - blocks)

    def chain_keys(self, salt: bytes) -> list[BlockKey]:
        """The root of a salt and all its blocks in memory: what is stored elsewhere hangs on
        these."""
        root = self.root(salt)
        there = self.index.by_depth(root)
        return [root, *(held.key for held in there if isinstance(held, Block))]

    # -- pins ----------------------------------------------------------------------------

    def pin(self, tokens: tuple[int, ...], salt: bytes, now: float, model: str = "") -> Pin | None:
        """Keep a prompt's full blocks, and the state that a restore of it needs, from now on or
        from when they are computed. None when the prompt is shorter than a block."""
        root, size = self.root(salt), self.layout.block_size
        keys = chain(root, tokens[:-1], size)
        if not keys:
            return None
        match = self.index.match(root, tokens[:-1])
        states = self._pinned_states(match, root, tokens[:-1], keys)
        id = f"pin-{block_key(root, tokens).hex()[:16]}"
        pin = Pin(id, self.namespace, root, len(keys) * size, now, (*keys, *states), size, model)
        replaced = self.pins.add(pin)
        for key in replaced.keys if replaced else ():
            self._pinned.let_go(key)
        self._hold_pinned([*match.blocks, *match.states().values()])
        return pin

    def unpinned(self, pin: Pin) -> None:
        """It was removed: let go of what no other pin holds."""
        for key in pin.keys:
            self._pinned.let_go(key)
        self._eviction.shrink()

    @property
    def pinned_bytes(self) -> int:
        """What all pins hold in memory."""
        return self._pinned.nbytes

    def pinned_now(self, pin: Pin) -> list[Held]:
        """What of a pin is held in memory, in its order."""
        return self._pinned.of(pin)

    def _hold_pinned(self, there: Sequence[Held]) -> None:
        for held in there:
            self._pinned.hold(self.record(held).key, held)

    # -- inside --------------------------------------------------------------------------

    def _insert(
        self, record: Record, root: BlockKey, tokens: tuple[int, ...], size: Size
    ) -> PayloadId | None:
        if record.part is Part.BLOCK:
            return self.index.insert_after(record.parent, record.start, record.tokens, size)
        return self.index.add_checkpoint(root, tokens, size, Worth(record.worth))

    def _pinned_states(
        self, match: Match, root: BlockKey, tokens: tuple[int, ...], keys: list[BlockKey]
    ) -> list[BlockKey]:
        """Of the states that a restore can use the deepest there is, and the one at the end."""
        if not self.layout.checkpointed:
            return []
        size = self.layout.block_size
        ends = {len(tokens), max(match.states(), default=len(tokens))}
        found = []
        for end in sorted(ends):
            start = (end - 1) // size * size
            parent = keys[start // size - 1] if start else root
            found.append(state_key(parent, tokens[start:end]))
        return found

    def _noted(self, id: PayloadId | None) -> PayloadId | None:
        """What has come may be pinned."""
        held = self.index.held(id) if id is not None and len(self.pins) else None
        if held is not None:
            self._pinned.hold(self.record(held).key, held)
        return id

    @property
    def _room(self) -> int:
        """What one prompt may bring back, or all pins together may hold."""
        return self.budget.nbytes // 2

    def _ask(self, ticket: Ticket, found: Found) -> bool:
        """Where the cold tier can't be listed, ask it first. False when there is nothing to ask."""
        if self._cold is None or self._cold.listed:
            return False
        prompt = _prompt(ticket.root, ticket.tokens, ticket.keys, found.match, found.cached)
        records = candidates(prompt, self._cold, self.layout, self.namespace, ticket.marks)
        if not records:
            return False
        self.reading.ask(ticket, records)
        return True

    def _read_ahead(self, ticket: Ticket, found: Found) -> None:
        """Ask the cold tier for what follows the blocks in memory, as far as it can be used."""
        prompt = _prompt(ticket.root, ticket.tokens, ticket.keys, found.match, found.cached)
        self.reading.want(ticket, self._recall(prompt))

    def _recall(self, prompt: Prompt) -> list[Record]:
        if self._cold is None:
            return []
        return recall(prompt, self._cold, self.layout, self.namespace, self.rates, self._room)

    def _find(self, ticket: Ticket) -> Found:
        match = self.index.match(ticket.root, ticket.tokens)
        if not ticket.reuses:
            return Found(match, None)
        return find(match, self.layout, len(ticket.tokens))

    def _hold(self, ticket: Ticket, found: Found) -> None:
        """Lease what the prompt will need, instead of what it held before."""
        needed: tuple[Held | None, ...] = (found.match.deepest(), found.state)
        wanted = [held for held in needed if held is not None]
        for held in wanted:
            self.index.touch(held)
            self.index.lease(held)
        self._release(ticket)
        ticket.leased = wanted

    def _release(self, ticket: Ticket) -> None:
        for held in ticket.leased:
            self.index.release(held)
        ticket.leased = []

    def _claim(self, ticket: Ticket, cached: int) -> None:
        for key in ticket.keys[cached // self.layout.block_size :]:
            if key not in self._claims:
                self._claims[key] = ticket
                ticket.claimed.append(key)


def _prompt(
    root: BlockKey, tokens: tuple[int, ...], keys: list[BlockKey], match: Match, cached: int
) -> Prompt:
    full = match.blocks[-1].stop if match.blocks else 0
    return Prompt(root, tokens, keys, full, match.depth, cached)
