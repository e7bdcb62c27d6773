"""Loads models on demand, one at a time, in the order of requests. One in use stays."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from omlx_server import clock
from omlx_server.engine.pool.entry import (
    RETRY_SECONDS,
    Lease,
    ModelRequest,
    Phase,
    PoolEntry,
    Resident,
    Rules,
    expired,
    longest_unused,
    plan_unloads,
)
from omlx_server.errors import Conflict, NoRoom, Unavailable

M = TypeVar("M")

_log = logging.getLogger(__name__)
# Clients give up when no response begins within a minute.
_PATIENCE_SECONDS = 50.0
_DRAIN_SECONDS = 300.0
_TICK_SECONDS = 0.5
_SHUTTING_DOWN = Unavailable("the server is shutting down")


class Loader(Protocol[M]):
    """Loads and unloads models. `check` raises what would prevent a load."""

    async def check(self, key: str) -> None: ...
    async def load(self, key: str, note: Callable[[int], None]) -> M:
        """`note` is told, on any thread, how many bytes of weights were read since it last was."""
        ...

    async def unload(self, model: M) -> None: ...


@dataclass(slots=True, eq=False)
class ModelPool(Generic[M]):
    """Loads models on demand, and unloads others. `live` returns bytes of a model's requests."""

    loader: Loader[M]
    rules: Callable[[], Rules]
    patience: float = _PATIENCE_SECONDS
    live: Callable[[M], int] = lambda model: 0
    _entries: dict[str, PoolEntry[M]] = field(default_factory=dict, init=False)
    # Held by the load or unload under way.
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    _released: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set, init=False)
    _closed: bool = field(default=False, init=False)

    def entry(self, key: str) -> PoolEntry[M] | None:
        return self._entries.get(key)

    def loaded(self) -> list[M]:
        entries = self._entries.values()
        return [e.model for e in entries if e.model and (e.users or e.phase is Phase.LOADED)]

    def change(self, changed: Callable[[M], M]) -> None:
        """Replace each loaded model; earlier leases keep the old one."""
        for entry in self._entries.values():
            if entry.model is not None:
                entry.model = changed(entry.model)

    def renew(self, wanted: ModelRequest) -> None:
        if wanted.key in self._entries:
            self._entries[wanted.key].wanted = wanted

    async def acquire(self, wanted: ModelRequest) -> Lease[M]:
        """Return a lease, loading the model if needed. Raises Unavailable, NoRoom, QueueFull."""
        return await self._acquire(wanted, self.patience)

    async def load(self, wanted: ModelRequest) -> None:
        """Load the model, however long that takes. Raises as `acquire`."""
        (await self._acquire(wanted, None)).release()

    async def _acquire(self, wanted: ModelRequest, patience: float | None) -> Lease[M]:
        if self._closed:
            raise _SHUTTING_DOWN
        entry = self._entry_of(wanted)
        if entry.phase is Phase.LOADED:
            return entry.lease()
        waiter = entry.add_waiter()
        self._begin_load(entry)
        return await entry.wait(waiter, patience)

    async def unload(self, key: str) -> None:
        """Unload a model, even if pinned, once unused. Raises Conflict if it stays in use."""
        async with self._turn:
            entry = self._entries.get(key)
            if entry is not None and entry.phase is Phase.LOADED:
                if not await self._wait_until_unused([entry], self.patience):
                    raise Conflict(f"it is in use by {entry.users} requests; try again later")
                await self._unload(entry)

    def unload_failed(self, key: str) -> None:
        entry = self._entries.get(key)
        if entry is not None and entry.model is not None:
            entry.has_failed = True
            entry.phase = Phase.UNLOADING
            self._spawn(self._unload_if_failed(entry))

    async def _unload_if_failed(self, entry: PoolEntry[M]) -> None:
        async with self._turn:
            if entry.has_failed:  # no new load has unloaded it meanwhile
                await self._unload(entry)

    async def make_way(self, key: str) -> bool:
        """Unload the longest unused model for this `key`. Return False if none could ever leave.
        Raises Unavailable at once if all are in use: they may wait for the asking model."""
        others_before = self._unpinned_others(key)
        if not self._turn.locked():
            async with self._turn:  # another waiter may have had it first
                others = self._unpinned_others(key)
                idle = longest_unused(others)
                if idle is not None:
                    await self._unload(self._entries[idle.key])
                    return True
            if not others:
                return bool(others_before)  # whether they left while this waited for its turn
        raise Unavailable(
            "other models leave too little memory for this request at the moment",
            retry_after=RETRY_SECONDS,
        )

    def pin(self, wanted: ModelRequest, pinned: bool) -> None:
        """Pin or unpin a model. A pinned one never leaves by itself."""
        self._entry_of(wanted).pinned = pinned

    def keep(self, key: str, seconds: float | None) -> None:
        """Keep a model for so many seconds after its last use, within its ttl."""
        entry = self._entries.get(key)
        if entry is not None and entry.model is not None:
            entry.keep_seconds = seconds

    @asynccontextmanager
    async def paused(self) -> AsyncGenerator[list[str], None]:
        """Load and unload nothing meanwhile. Yield the keys of models that are in use."""
        async with self._turn:
            entries = self._entries.items()
            yield [key for key, entry in entries if entry.model is not None or entry.waiters]

    def start(self) -> None:
        self._spawn(self._unload_expired_forever())

    async def close(self) -> None:
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _begin_load(self, entry: PoolEntry[M]) -> None:
        if entry.load_task is None and not self._closed:
            entry.load_task = self._spawn(self._load_in_turn(entry))
            entry.load_task.add_done_callback(lambda task: self._end_load(entry, task))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _load_in_turn(self, entry: PoolEntry[M]) -> None:
        async with self._turn:
            if entry.has_failed or entry.unload_task:
                await self._unload(entry)
            if entry.phase is Phase.LOADED:
                entry.give_leases()
            elif entry.is_wanted:
                await self._make_room(entry)
                await self._load(entry)

    def _end_load(self, entry: PoolEntry[M], task: asyncio.Task[None]) -> None:
        entry.load_task, entry.has_told_to_retry = None, False
        error = _SHUTTING_DOWN if task.cancelled() else task.exception()
        if error is not None:
            entry.fail_waiters(error)
        elif entry.waiters:
            self._begin_load(entry)  # new waiters came meanwhile

    async def _load(self, entry: PoolEntry[M]) -> None:
        entry.phase, entry.problem, entry.read_bytes = Phase.LOADING, "", 0
        begun = clock.now()
        with _noting_failure(entry):
            entry.model = await self.loader.load(entry.wanted.key, entry.note_read)
        _log.info("%s was loaded in %.1f s", entry.wanted, clock.now() - begun)
        entry.phase, entry.used = Phase.LOADED, clock.now()
        entry.loads += 1
        entry.give_leases()

    async def _make_room(self, entry: PoolEntry[M]) -> None:
        """Unload what has to leave for a model. Raises NoRoom or Unavailable."""
        wanted = entry.wanted
        plan = plan_unloads(self._residents(), wanted.nbytes, self.rules())
        if plan.never:
            raise NoRoom(f"there is not enough memory for this model: {plan.never}")
        if plan.unloaded_keys:
            with _noting_failure(entry):  # unload nothing for a model that can't load
                await self.loader.check(wanted.key)
        leaving = [self._entries[key] for key in plan.unloaded_keys]
        if not await self._wait_until_unused(leaving, _DRAIN_SECONDS, lambda: entry.is_wanted):
            raise Unavailable(
                "other models are in use and leave no room for this one", retry_after=RETRY_SECONDS
            )
        try:
            for other in leaving:
                await self._unload(other)
        finally:
            for other in leaving:
                other.reopen()

    async def _wait_until_unused(
        self,
        entries: Sequence[PoolEntry[M]],
        seconds: float,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> bool:
        """Return whether the models are unused within `seconds`; else reopen them."""
        for entry in entries:
            entry.phase = Phase.UNLOADING
        is_unused = False
        with suppress(TimeoutError):
            try:
                async with clock.timeout(seconds):
                    while any(entry.users for entry in entries) and is_wanted():
                        self._released.clear()
                        await self._released.wait()
                is_unused = not any(entry.users for entry in entries)
            finally:
                if not is_unused:
                    for entry in entries:
                        entry.reopen()
        return is_unused

    async def _unload(self, entry: PoolEntry[M]) -> None:
        """Unload a model, once for all who ask; goes on if its caller is cancelled."""
        if entry.model is None:
            return
        entry.phase = Phase.UNLOADING
        if entry.unload_task is None:
            entry.unload_task = self._spawn(self._run_unload(entry))
        await asyncio.shield(entry.unload_task)

    async def _run_unload(self, entry: PoolEntry[M]) -> None:
        assert entry.model is not None
        entry.phase, entry.has_failed = Phase.UNLOADING, False
        try:
            await self.loader.unload(entry.model)
        finally:
            entry.model, entry.phase, entry.unload_task = None, Phase.ABSENT, None
            entry.keep_seconds = None
            if entry.waiters:
                self._begin_load(entry)
        _log.info("%s was unloaded", entry.wanted)

    async def _unload_expired_forever(self) -> None:
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            if not self._turn.locked():
                task = self._spawn(self._unload_expired())
                await asyncio.wait([task])
                if not task.cancelled() and task.exception() is not None:
                    _log.error("a model could not be unloaded", exc_info=task.exception())

    async def _unload_expired(self) -> None:
        async with self._turn:
            is_short = self.rules().is_short
            while keys := expired(self._residents(), clock.now(), is_short=is_short):
                await self._unload(self._entries[keys[0]])

    def _entry_of(self, wanted: ModelRequest) -> PoolEntry[M]:
        return self._entries.setdefault(wanted.key, PoolEntry(wanted, self._released))

    def _unpinned_others(self, key: str) -> list[Resident]:
        return [r for r in self._residents() if not r.pinned and r.key != key]

    def _residents(self) -> list[Resident]:
        entries = self._entries.values()
        return [e.resident(self.live(e.model)) for e in entries if e.model is not None]


@contextmanager
def _noting_failure(entry: PoolEntry[Any]) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        entry.phase, entry.problem = Phase.FAILED, str(error)
        raise
