"""The adapters of one loaded model. Owned by the mlx thread. Within `using`, the layers that
they change are replaced."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar, cast

import mlx.core as mx
import mlx.nn as nn

from omlx_server.compute.adapters.reading import (
    LayerEntry,
    check_shapes,
    place_of,
    reading,
    unusable,
)
from omlx_server.compute.adapters.stacks import (
    SLICE_BYTES,
    AdaptedLinear,
    AdapterStack,
    RankGroup,
    RowSlots,
)
from omlx_server.core.adapters import Adapter
from omlx_server.core.crash import Crash, guarded
from omlx_server.core.work import Work

A = TypeVar("A")
RowAdapters = Sequence[Adapter | None]
_Placed = list[tuple[LayerEntry, AdaptedLinear]]


class AdapterStore:
    """The `loaded` adapters, the least recently used first."""

    def __init__(self) -> None:
        self.loaded: dict[Adapter, None] = {}
        self._groups: dict[int, RankGroup] = {}
        self._refused: dict[Adapter, str] = {}
        self._places: dict[str, LayerEntry] = {}
        self._last_placed: tuple[tuple[Adapter | None, ...], _Placed] = (), []

    @property
    def nbytes(self) -> int:
        return sum(group.nbytes for group in self._groups.values())

    @property
    def token_bytes(self) -> int:
        """The most bytes of adapters for one token of a forward."""
        stacks = (stack for group in self._groups.values() for stack in group.stacks.values())
        return max((stack.token_bytes for stack in stacks), default=0)

    def nbytes_with(self, adapter: Adapter) -> int:
        group = self._group(adapter)
        return self.nbytes - group.nbytes + group.nbytes_with(adapter)

    def needs(self, adapter: Adapter) -> int:
        """Return the most extra bytes during a load."""
        stacks = self._group(adapter).nbytes_with(adapter)
        return 3 * adapter.nbytes + stacks + min(stacks, SLICE_BYTES)

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
        self._places |= {path: place_of(adapter, model, path) for path in matrices}
        self.loaded[adapter] = None
        self._change(after)
        crash = guarded(self._try, model, adapter)
        if isinstance(crash, Crash):
            del self.loaded[adapter]
            self._change(before)
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
        self._change(group)

    def _try(self, model: nn.Module, adapter: Adapter) -> None:
        """A model may do more with a layer than call it, so a forward is set up, uncomputed."""
        with self.using([adapter]):
            model(mx.array([[0]]))

    def _change(self, group: RankGroup) -> None:
        self._groups[group.rank] = group
        self._groups = {rank: one for rank, one in self._groups.items() if one.adapters}
        paths = {path for one in self._groups.values() for path in one.stacks}
        self._places = {path: place for path, place in self._places.items() if path in paths}
        self._last_placed = (), []

    @contextmanager
    def using(self, rows: RowAdapters) -> Iterator[None]:
        """Give each row its loaded adapter in forwards within the block."""
        placed = self._placed(rows) if any(rows) else ()
        try:
            for place, layer in placed:
                place.replace(layer)
            yield
        finally:
            for place, _ in placed:
                place.restore()

    def adapted(self, forward: Callable[..., A], rows: RowAdapters) -> Callable[..., A]:
        if not any(rows):
            return forward

        def run(*args: object, **options: object) -> A:
            with self.using(rows):
                return forward(*args, **options)

        return run

    def _placed(self, rows: RowAdapters) -> _Placed:
        if self._last_placed[0] == tuple(rows):
            return self._last_placed[1]
        missing = [adapter.name for adapter in rows if adapter and adapter not in self.loaded]
        if missing:
            raise RuntimeError(f"the adapter '{missing[0]}' is not loaded")
        groups = (group.slots_of(rows) for group in self._groups.values())
        used = [group for group in groups if group is not None]
        placed = [
            (place, AdaptedLinear(cast(nn.Module, place.layer), parts))
            for path, place in self._places.items()
            if (parts := _parts(path, used))
        ]
        self._last_placed = tuple(rows), placed
        return placed


def _parts(path: str, used: Sequence[RowSlots]) -> list[tuple[AdapterStack, RowSlots]]:
    return [(rows.group.stacks[path], rows) for rows in used if path in rows.group.stacks]
