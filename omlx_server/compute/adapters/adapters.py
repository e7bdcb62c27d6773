"""The adapters of one loaded model. Mlx thread."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar, cast

import mlx.core as mx
import mlx.nn as nn

from omlx_server.compute.adapters.reading import (
    SLICE_BYTES,
    AdaptedLinear,
    LayerEntry,
    RankGroup,
    check_shapes,
    find_layer,
    reading,
    unusable,
)
from omlx_server.core.adapters import Adapter
from omlx_server.core.crash import Crash, guarded
from omlx_server.core.work import Work

A = TypeVar("A")
RowAdapters = Sequence[Adapter | None]
_Replacements = list[tuple[LayerEntry, AdaptedLinear]]


class AdapterStore:
    """The `loaded` adapters, the least recently used first. Within `using`, layers of the model are
    replaced by ones with adapters."""

    def __init__(self) -> None:
        self.loaded: dict[Adapter, None] = {}
        self._groups: dict[int, RankGroup] = {}  # by rank
        self._refused: dict[Adapter, str] = {}  # with the reason
        self._entries: dict[str, LayerEntry] = {}  # by layer path
        self._last_used: tuple[tuple[Adapter | None, ...], _Replacements] = (), []

    @property
    def nbytes(self) -> int:
        return sum(group.nbytes for group in self._groups.values())

    @property
    def token_bytes(self) -> int:
        """The most bytes of adapters for one token of a forward."""
        stacks = (stack for group in self._groups.values() for stack in group.stacks.values())
        return max((stack.token_bytes for stack in stacks), default=0)

    def nbytes_with(self, adapter: Adapter) -> int:
        """Return the bytes of all adapters and this one more."""
        group = self._group(adapter)
        return self.nbytes - group.nbytes + group.nbytes_with(adapter)

    def needs(self, adapter: Adapter) -> int:
        """Return the most extra bytes during a load."""
        stack_bytes = self._group(adapter).nbytes_with(adapter)
        return 3 * adapter.nbytes + stack_bytes + min(stack_bytes, SLICE_BYTES)

    def needs_without(self, adapter: Adapter) -> int:
        """Return the most extra bytes during an unload."""
        return self._group(adapter).nbytes_without(adapter)

    def _group(self, adapter: Adapter) -> RankGroup:
        return self._groups.get(adapter.rank, RankGroup(adapter.rank))

    def check(self, model: nn.Module, adapter: Adapter) -> None:
        """Raise AdapterUnusable if its shapes don't fit or a load has failed."""
        if adapter in self._refused:
            raise unusable(adapter, self._refused[adapter])
        check_shapes(adapter, model)

    def touch(self, adapter: Adapter) -> bool:
        """Mark as used. Return whether it is loaded."""
        if adapter not in self.loaded:
            return False
        del self.loaded[adapter]
        self.loaded[adapter] = None
        return True

    def loading(self, model: nn.Module, adapter: Adapter) -> Work[None]:
        """Load an adapter in slices, unless it is loaded. No other may come or go. Raises
        AdapterUnusable."""
        if adapter in self.loaded:
            return
        self.check(model, adapter)
        matrices = yield from reading(adapter)
        before = self._group(adapter)
        after = yield from before.joined(adapter, matrices)
        self._entries |= {path: find_layer(adapter, model, path) for path in matrices}
        self.loaded[adapter] = None
        self._replace_group(after)
        crash = guarded(self._try_forward, model, adapter)
        if isinstance(crash, Crash):
            del self.loaded[adapter]
            self._replace_group(before)
            self._refused[adapter] = f"the model does not work with it: {crash.summary}"
            raise unusable(adapter, self._refused[adapter])

    def unloading(self, adapter: Adapter) -> Work[None]:
        """Unload an unused adapter in slices. It stays if the work is closed."""
        del self.loaded[adapter]
        try:
            group = yield from self._groups[adapter.rank].without(adapter)
        except BaseException:
            self.loaded[adapter] = None
            raise
        self._replace_group(group)

    def _try_forward(self, model: nn.Module, adapter: Adapter) -> None:
        """Set up a forward without computing it: a model may do more with a layer than call it."""
        with self.using([adapter]):
            model(mx.array([[0]]))

    def _replace_group(self, group: RankGroup) -> None:
        """Replace the group of a rank; forget what no adapter needs any more."""
        self._groups[group.rank] = group
        self._groups = {rank: one for rank, one in self._groups.items() if one.adapters}
        paths = {path for one in self._groups.values() for path in one.stacks}
        self._entries = {path: entry for path, entry in self._entries.items() if path in paths}
        self._last_used = (), []

    @contextmanager
    def using(self, rows: RowAdapters) -> Iterator[None]:
        """Give each row its loaded adapter in forwards within the block."""
        replacements = self._replacements(rows) if any(rows) else ()
        try:
            for entry, layer in replacements:
                entry.replace(layer)
            yield
        finally:
            for entry, _ in replacements:
                entry.restore()

    def adapted(self, forward: Callable[..., A], rows: RowAdapters) -> Callable[..., A]:
        """Return `forward` with each row's adapter."""
        if not any(rows):
            return forward

        def run(*args: object, **options: object) -> A:
            with self.using(rows):
                return forward(*args, **options)

        return run

    def _replacements(self, rows: RowAdapters) -> _Replacements:
        last_rows, last_replacements = self._last_used
        if last_rows == tuple(rows):
            return last_replacements
        missing = [adapter.name for adapter in rows if adapter and adapter not in self.loaded]
        if missing:
            raise RuntimeError(f"the adapter '{missing[0]}' is not loaded")
        slots_by_group = (group.slots_of(rows) for group in self._groups.values())
        used = [slots for slots in slots_by_group if slots is not None]
        replacements: _Replacements = []
        for path, entry in self._entries.items():
            stacks = [(rows.group.stacks[path], rows) for rows in used if path in rows.group.stacks]
            if stacks:
                replacements.append((entry, AdaptedLinear(cast(nn.Module, entry.layer), stacks)))
        self._last_used = tuple(rows), replacements
        return replacements
