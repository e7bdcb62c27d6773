"""The policy of the prefix cache: lookups, waits, what is kept and dropped. Pure; mlx thread.

enter      a prefill is queued: the blocks that it matches are leased
must_wait  it may not begin while another prefill computes its next block
admit      it begins: its restore is planned, and the blocks that it will compute are claimed
leave      it is computed, cancelled or failed: its leases and claims are given back
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace

from omlx_server.core.blocks.block import (
    Block,
    BlockPlace,
    CacheEntry,
    CacheLayout,
    PayloadId,
    Size,
    Worth,
)
from omlx_server.core.blocks.index import BlockIndex
from omlx_server.core.blocks.keys import BlockKey, block_key, chain, root_key
from omlx_server.core.blocks.lookup import (
    BlocksInUse,
    Lookup,
    PrefixHandle,
    PrefixMatch,
    find_restorable,
    resumable_checkpoints,
)
from omlx_server.core.blocks.pins import Pin, PinnedBlocks, Pins, checkpoints_to_pin
from omlx_server.core.blocks.record import Record, RecordKind
from omlx_server.core.cold.index import ColdIndex, WriteCause
from omlx_server.core.cold.read_ahead import ReadAhead, comes_early
from omlx_server.core.cold.recall import RecallPrompt, forget_beyond, reach
from omlx_server.core.prefix_cache.cuts import Cutter, checkpoint_branches, plan_checkpoints
from omlx_server.core.prefix_cache.eviction import Eviction, HotBudget, Uses, write_cause
from omlx_server.core.prefix_cache.misses import Misses
from omlx_server.core.prefix_cache.report import CacheReport, Dropped, PromptReport
from omlx_server.core.request import Miss


class PrefixCache:
    """One model's blocks in memory, and what waiting prompts read from the cold tier."""

    def __init__(
        self,
        layout: CacheLayout,
        namespace: str,
        budget: HotBudget,
        cold: ColdIndex | None = None,
        pins: Pins | None = None,
        pin_share: float = 0.5,
    ) -> None:
        """`pin_share` is the part of the first `budget` for all pins."""
        self.layout = layout
        self.pins = Pins() if pins is None else pins
        self.stats = CacheReport(
            misses={miss.value: 0 for miss in Miss}, checkpointed=layout.checkpointed
        )
        self.index = BlockIndex(layout.block_size)
        self.cutter = Cutter(layout)
        self._misses = Misses(self.index)
        self.namespace = layout.namespace(namespace)
        self._claims: dict[BlockKey, PrefixHandle] = {}  # who computes a block
        self._active: list[PrefixHandle] = []  # who is computed
        self.eviction = Eviction(self.index, budget, self.stats, demotes=cold is not None)
        self.uses = Uses(self.index, layout, self.eviction)
        self.read_ahead = ReadAhead(cold, self.index, layout, self.namespace)
        most = int(budget.nbytes * pin_share), int(budget.checkpoint_bytes * pin_share)
        self.pinned = PinnedBlocks(self.index, self.pins, *most)

    @property
    def budget(self) -> HotBudget:
        return self.eviction.budget

    @budget.setter
    def budget(self, budget: HotBudget) -> None:
        self.eviction.budget = budget
        self.eviction.shrink()

    @property
    def cold(self) -> ColdIndex | None:
        return self.read_ahead.tier

    def leave_cold(self) -> None:
        self.read_ahead.leave()
        self.eviction.stop_demoting()

    def enter(
        self,
        tokens: tuple[int, ...],
        salt: bytes,
        checkpoints_at: Sequence[int],
        owner: bytes = b"",
    ) -> PrefixHandle:
        """`tokens` are all but the prompt's last."""
        root = root_key(self.namespace, salt)
        keys = chain(root, tokens, self.layout.block_size)
        handle = PrefixHandle(root, tokens, keys, owner)
        prefix = self._match(handle)
        handle.known = prefix.cached
        if self.layout.checkpointed:
            handle.checkpoints_at = plan_checkpoints(
                len(tokens), checkpoints_at, self.budget.lattice_start
            )
        self._lease(handle, prefix)
        self.read_ahead.enter(handle, prefix)
        return handle

    def must_wait(self, handle: PrefixHandle) -> bool:
        if handle.awaits_cold:
            return True
        if not self._claims or not handle.reuses:
            return False
        # The first block that is not in memory: none is here without its parent.
        next_block = bisect_left(handle.keys, True, key=lambda key: key not in self.index)
        return next_block < len(handle.keys) and handle.keys[next_block] in self._claims

    def lease_cached(self, handle: PrefixHandle) -> int:
        """Lease what is in memory for a waiting prompt. Returns its tokens."""
        prefix = self._match(handle)
        self._lease(handle, prefix)
        return prefix.cached

    def read_on(self, handle: PrefixHandle, others: Sequence[PrefixHandle]) -> bool:
        """Read more for a prompt that could begin. Blocks of `others`, which wait, go for it if
        room is short. Returns whether it waits for a read."""
        ahead = self.read_ahead
        if not ahead.may_read_more(handle):
            return False
        recalled = ahead.choose(handle, self._match(handle))
        if recalled.why is Miss.NO_ROOM:
            if ahead.waits.reading:  # what is read now may free room, or need it
                return True
            for other in others:
                self.let_go(other)
            recalled = ahead.choose(handle, self._match(handle))
        ahead.want(handle, recalled)
        return handle.awaits_cold

    def admit(self, handle: PrefixHandle) -> Lookup:
        prefix = self._match(handle)
        self._lease(handle, prefix)
        if self.layout.keeps:
            self._claim(handle, prefix.cached)
        if self.layout.checkpointed:
            checkpoint_branches(handle, prefix, self._active, self.layout.block_size)
        self._active.append(handle)
        handle.waiting = False
        handle.blocks = self.uses.begin(prefix)
        stats = self.stats
        stats.queried_tokens += len(handle.tokens)
        stats.hit_tokens += prefix.cached
        # `known`: in memory when it came; `promoted`: how far reads of the cold tier brought it.
        cold_tokens = min(prefix.cached, handle.promoted) - handle.known
        stats.cold_hit_tokens += max(0, cold_tokens)
        miss = self._misses.reason(handle, prefix)
        self._misses.note(handle)
        stats.misses[miss] += 1
        return Lookup(prefix.plan, miss, prefix.match.depth)

    def leave(self, handle: PrefixHandle) -> None:
        self.let_go(handle)
        self.uses.end(handle.blocks)
        self.read_ahead.waits.stop(handle)
        for key in handle.claimed:
            if self._claims.get(key) is handle:
                del self._claims[key]
        handle.claimed = []
        if handle in self._active:
            self._active.remove(handle)
        handle.waiting = True

    def let_go(self, handle: PrefixHandle) -> None:
        """Release a prompt's leases."""
        for entry in handle.leased:
            self.index.release(entry)
        handle.leased = []

    def blocks_to_use(self, handle: PrefixHandle, tokens: int) -> tuple[int, int]:
        """Return the tokens that a waiting prompt would refer to, and their unused bytes."""
        return self.uses.of_restore(self._match(handle), tokens)

    def store_block(
        self, place: BlockPlace, size: Size, users: Sequence[BlocksInUse] = ()
    ) -> PayloadId | None:
        id = self.index.insert(place, size)
        block = self.index.block(block_key(place.parent, place.tokens)) if id is not None else None
        if block is not None:
            block.seen_again = any(blocks.goes_on for blocks in users)
        for blocks in users:
            self.uses.extend(blocks, id)
        return self._finish_insert(id)

    def store_checkpoint(self, place: BlockPlace, size: Size, worth: Worth) -> PayloadId | None:
        return self._finish_insert(self.index.add_checkpoint(place, size, worth))

    def forget(self, root: BlockKey, tokens: Sequence[int], start: int) -> None:
        """Drop what a sequence has in both tiers beyond its token `start`, and all that follows,
        pinned or in use."""
        match = self.index.match(root, tokens)
        ids = [block.id for block in match.path if block.stop > start][:1]
        ids += [point.id for at, point in match.checkpoints().items() if at > start]
        self.eviction.drop_lost(ids)
        self.eviction.forget_demoted()  # it may be of the same blocks
        self.pinned.release_gone()
        if self.cold is not None:
            keys = (root, *chain(root, tokens, self.layout.block_size))
            self.eviction.forbid(forget_beyond(self.cold, keys, tokens, start))

    def path(self, handle: PrefixHandle) -> list[tuple[PayloadId, Record]]:
        """Return a prompt's blocks (id, record), parents first, then usable checkpoints."""
        match = self.index.match(handle.root, handle.tokens)
        path = []
        for block in match.path:
            record, length = self.record(block), match.depth - block.start
            path.append((block.id, replace(record, tokens=record.tokens[:length])))
        checkpoints = resumable_checkpoints(match, self.layout, len(handle.tokens))
        return path + [(checkpoint.id, self.record(checkpoint)) for checkpoint in checkpoints]

    def root(self, salt: bytes) -> BlockKey:
        return root_key(self.namespace, salt)

    def record(self, entry: CacheEntry) -> Record:
        return Record.of(entry, self.namespace)

    def take_demoted(self) -> list[tuple[PayloadId, Record, WriteCause]]:
        """Return what left for the cold tier. Call it before `take_evicted`."""
        return [
            (entry.id, self.record(entry), write_cause(entry))
            for entry in self.eviction.take_demoted()
        ]

    def note_answer(self, question: int) -> None:
        """Read what the cold tier has, by its answer."""
        handle = self.read_ahead.waits.take_answer(question)
        if handle is not None:
            prefix = self._match(handle)
            self._lease(handle, prefix)  # with what has come since
            self.read_ahead.want(handle, self.read_ahead.choose(handle, prefix))

    def promote(self, record: Record, size: Size) -> PayloadId | None:
        """Take in what was read. Returns its id; None if unwanted, known, or without parent."""
        waits, tier = self.read_ahead.waits, self.read_ahead.tier
        waiting = waits.take_waiting(record.key)
        if not waiting:
            return None
        id = self._insert(record, size)
        self._hold_if_pinned(id)
        # It came before its parent: these prompts ask for it again.
        early = [handle for handle in waiting if id is None and comes_early(record, handle)]
        waits.read_again(record, early)
        # A listed tier knows sizes beforehand, so reads fit the room already.
        unplanned_bytes = 0 if tier is None or tier.listed else size.nbytes
        # Without an id it may have been computed meanwhile.
        entry = self.index.entry(id) if id is not None else self.index.block(record.key)
        for handle in waiting:
            if handle not in early:
                if entry is not None:
                    self.index.lease(entry)
                waits.note_arrival(handle, record, entry, unplanned_bytes)
        self.eviction.shrink()
        return id

    def insert(self, record: Record, size: Size) -> PayloadId | None:
        """Keep what another computed. Returns its id; None if it is known or lacks its parent."""
        return self._finish_insert(self._insert(record, size))

    def give_up(self, key: BlockKey, reason: str) -> None:
        """Let prompts go on without a block that did not come."""
        for handle in self.read_ahead.waits.take_waiting(key):
            self.read_ahead.waits.note_failure(handle, key, reason)

    def probe(self, tokens: tuple[int, ...], salt: bytes) -> PromptReport:
        """Return what this prompt would get. Does not modify."""
        root = self.root(salt)
        keys = chain(root, tokens[:-1], self.layout.block_size)
        handle = PrefixHandle(root, tokens[:-1], keys)
        prefix = self._match(handle)
        prompt = RecallPrompt.of(handle, prefix)
        records = self.read_ahead.recall(prompt, self.read_ahead.room).records
        reached = [(record, reach(prompt, record)) for record in records]
        return PromptReport.of(tokens, prefix, reached)

    def report(self) -> CacheReport:
        index = self.index
        return replace(
            self.stats,
            nbytes=index.nbytes,
            in_use=index.in_use,
            budget=self.budget.nbytes,
            blocks=len(index),
            checkpoints=index.checkpoint_count,
            checkpoint_bytes=index.checkpoint_bytes,
            buffers=index.buffers,
            misses=self.stats.misses.copy(),
        )

    def reset(self, salt: bytes | None = None) -> Dropped:
        """Drop what is not in use, also pinned. Returns what was there."""
        root = None if salt is None else self.root(salt)
        entries = self.index.by_depth(root)
        self._misses.forget(root)
        self.pinned.clear(root)
        self.eviction.note_gone(self.index.clear(root))
        self._hold_pinned(self.index.by_depth(root))  # what is in use has stayed
        return Dropped.all(entries)

    def chain_keys(self, salt: bytes) -> list[BlockKey]:
        root = self.root(salt)
        return [root, *(b.key for b in self.index.by_depth(root) if isinstance(b, Block))]

    def pin(self, tokens: tuple[int, ...], salt: bytes, now: float, model: str = "") -> Pin | None:
        """Pin a prompt's full blocks, computed or not, and checkpoints; None without a block."""
        root, size = self.root(salt), self.layout.block_size
        keys = chain(root, tokens[:-1], size)
        covered = len(keys) * size
        if not covered:
            return None
        match = self.index.match(root, tokens[:-1])
        if self.layout.checkpointed:
            keys += checkpoints_to_pin(match, root, tokens[:-1], keys, size)
        id = f"pin-{block_key(root, tokens).hex()[:16]}"
        pin = Pin(id, self.namespace, root, covered, now, tuple(keys), size, model)
        replaced = self.pins.add(pin)
        for key in replaced.keys if replaced else ():
            self.pinned.let_go(key)
        self._hold_pinned([*match.blocks, *match.checkpoints().values()])
        return pin

    def release_pin(self, pin: Pin) -> None:
        for key in pin.keys:
            self.pinned.let_go(key)
        self.eviction.shrink()

    def _hold_pinned(self, entries: Sequence[CacheEntry]) -> None:
        for entry in entries:
            self.pinned.hold(self.record(entry).key, entry)

    def _insert(self, record: Record, size: Size) -> PayloadId | None:
        place = BlockPlace(record.parent, record.start, record.tokens)
        if record.part is RecordKind.BLOCK:
            return self.index.insert(place, size)
        return self.index.add_checkpoint(place, size, Worth(record.worth))

    def _finish_insert(self, id: PayloadId | None) -> PayloadId | None:
        self._hold_if_pinned(id)
        self.eviction.shrink()
        return id

    def _hold_if_pinned(self, id: PayloadId | None) -> None:
        entry = self.index.entry(id) if id is not None and len(self.pins) else None
        if entry is not None:
            self.pinned.hold(self.record(entry).key, entry)

    def _match(self, handle: PrefixHandle) -> PrefixMatch:
        match = self.index.match(handle.root, handle.tokens)
        if not handle.reuses:
            return PrefixMatch(match, None)
        return find_restorable(match, self.layout, len(handle.tokens))

    def _lease(self, handle: PrefixHandle, prefix: PrefixMatch) -> None:
        needed: tuple[CacheEntry | None, ...] = (prefix.match.deepest(), prefix.checkpoint)
        entries = [entry for entry in needed if entry is not None]
        for entry in entries:
            self.index.touch(entry)
            self.index.lease(entry)
        self.let_go(handle)
        handle.leased = entries

    def _claim(self, handle: PrefixHandle, cached: int) -> None:
        for key in handle.keys[cached // self.layout.block_size :]:
            if key not in self._claims:
                self._claims[key] = handle
                handle.claimed.append(key)
