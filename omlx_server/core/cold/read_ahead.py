"""Reads blocks from the cold tier for waiting prompts. Pure; owned by the prefix cache."""

import sys
from collections.abc import Callable

from omlx_server.core.blocks.cache_layout import CacheLayout
from omlx_server.core.blocks.index import BlockIndex
from omlx_server.core.blocks.lookup import PrefixHandle
from omlx_server.core.blocks.restore import PrefixMatch
from omlx_server.core.cold.index import ColdIndex
from omlx_server.core.cold.recall import Rates, Recall, RecallPrompt, candidates, recall
from omlx_server.core.cold.waiting import ColdWaits
from omlx_server.core.request import Miss

# Reads per prompt, at most: others may evict what was read while it waits for the rest.
_MOST_ASKED = 8


class ReadAhead:
    """Reads ahead from a `tier`, if there is one, at most `most_bytes()` for all waiting
    prompts."""

    def __init__(
        self,
        tier: ColdIndex | None,
        index: BlockIndex,
        layout: CacheLayout,
        namespace: str,
    ) -> None:
        self.tier = tier
        self.most_bytes: Callable[[], int] = lambda: sys.maxsize
        self.waits = ColdWaits()
        self.rates = Rates()
        self._index = index
        self._layout = layout
        self._namespace = namespace

    def leave(self) -> None:
        self.tier = None
        self.waits.end()

    def enter(self, handle: PrefixHandle, prefix: PrefixMatch) -> None:
        """Read what follows the blocks in memory, if all of it has room."""
        if self.tier is None:
            return
        if not self.tier.listed:
            prompt, stops = RecallPrompt.of(handle, prefix), handle.checkpoints_at
            records = candidates(prompt, self.tier, self._layout, self._namespace, stops)
            if records:
                self.waits.ask(handle, records)
                return
        recalled = self.look(handle, prefix)
        if recalled.why is not Miss.NO_ROOM:
            self.want(handle, recalled)

    def can_ask(self, handle: PrefixHandle) -> bool:
        listed = self.tier is not None and self.tier.listed
        failed = handle.missed not in (None, Miss.NO_ROOM)
        return listed and not failed and handle.asked < _MOST_ASKED

    def look(self, handle: PrefixHandle, prefix: PrefixMatch) -> Recall:
        handle.room = self.room
        recalled = self.recall(RecallPrompt.of(handle, prefix), handle.room)
        handle.missed = recalled.why
        return recalled

    def want(self, handle: PrefixHandle, recalled: Recall) -> None:
        handle.asked += bool(recalled.records)
        self.waits.want(handle, recalled.records)

    def recall(self, prompt: RecallPrompt, room: int) -> Recall:
        if self.tier is None:
            return Recall([])
        return recall(prompt, self.tier, self._layout, self._namespace, self.rates, room)

    @property
    def room(self) -> int:
        tier, keys = self.tier, self.waits.reading
        entries = (tier.entry(key) for key in keys) if tier is not None else ()
        coming = sum(entry.nbytes for entry in entries if entry is not None)
        return max(0, self.most_bytes() - self._index.leased_bytes() - coming)
