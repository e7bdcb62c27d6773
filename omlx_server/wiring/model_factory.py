"""Models at work: their caches, tiers and limits as the settings want them."""

import logging
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from omlx_server.compute.hardware import device
from omlx_server.compute.model.fingerprint import fingerprint
from omlx_server.compute.model.loader import LoadedModel, loading
from omlx_server.compute.model.system_fingerprint import system_fingerprint
from omlx_server.compute.payload import BlockCodec, Payload, why_not_reused
from omlx_server.compute.quantise import make_scheme
from omlx_server.compute.runner import ModelRunner
from omlx_server.core.blocks.keys import BlockKey
from omlx_server.core.blocks.pins import Pins
from omlx_server.core.cold.index import ColdReport
from omlx_server.core.memory.estimate import Planner
from omlx_server.core.memory.ledger import in_words
from omlx_server.core.prefix_cache.no_cache import NoCache
from omlx_server.core.prefix_cache.prefix_cache import PrefixCache, full_namespace
from omlx_server.core.scheduler.limits import Limits
from omlx_server.core.scheduler.policy import POLICIES
from omlx_server.core.work import Work
from omlx_server.engine.memory.account import Seat
from omlx_server.engine.memory.monitor import MemoryWatch
from omlx_server.engine.model_instance import Lane
from omlx_server.engine.pin_board import PinBoard
from omlx_server.models.locate import Located
from omlx_server.settings import Settings
from omlx_server.store.cold import ColdTier
from omlx_server.store.files import Files
from omlx_server.store.hot import HotTier
from omlx_server.store.lock import Lock
from omlx_server.store.mediums.breaker import Guarded
from omlx_server.store.mediums.medium import Medium, MediumError
from omlx_server.store.mediums.remote import Apart, open_remote
from omlx_server.store.secret import secret
from omlx_server.wiring.memory import (
    Shares,
    cache_budget,
    make_account,
    make_watch,
    planning_for,
    shares_of,
)

_log = logging.getLogger(__name__)
# A call to a remote store that takes longer counts as a miss, and five of them as an outage.
_REMOTE_SECONDS = 2.0


def limits(settings: Settings) -> Limits:
    scheduler, block = settings.scheduler, settings.cache.block_tokens
    best = min(max(device.prefill_chunk_tokens(), block), scheduler.max_batched_tokens)
    chosen = scheduler.prefill_chunk_tokens
    return Limits(
        max_batch_size=scheduler.max_batch_size,
        max_queue=scheduler.max_queue,
        prefill_chunk_tokens=best if chosen == "auto" else chosen,
        max_batched_tokens=scheduler.max_batched_tokens,
        decode_share=scheduler.decode_share,
        policy=POLICIES[scheduler.policy],
        halve_chunks_at=device.halve_chunks_at(),
        most_places=device.most_places(),
        most_joins=device.most_joins(),
    )


class Lanes:
    """Makes the lanes of one server, which share the account of the memory and the cold tier.

    What it makes is made on the mlx thread, in slices. `settings` may be replaced while it runs.
    """

    def __init__(self, settings: Settings, wake: Callable[[], None] = lambda: None) -> None:
        """`wake` is called, on any thread, when the cold tier has something. Raises ConfigError for
        a remote store that can't be."""
        self.settings = settings
        self.cold: ColdTier | None = None
        self.shares = shares_of(settings, cold=settings.cache.has_cold)
        self.account = make_account(self.shares, self._left)
        self._remote = _remote(settings)
        self._pins = Pins()
        self.pins = PinBoard(self._pins, self.at_work, lambda: self.cold)
        self.wake = wake

    def fingerprint(self, located: Located, *, whole: bool = False) -> str:
        """The name of a model's weights. May read all of them, and does if `whole`; any thread."""
        notes = _notes(self.settings, "fingerprints")
        return fingerprint(located.path, notes, whole=whole, allowed=self._may_write)

    def system_fingerprint(self, located: Located) -> str:
        """The name of what computes a model's answers, as it would be loaded now; any thread."""
        kv = self.settings.kv_cache_of(located.names)
        return system_fingerprint(located.path, make_scheme(kv.scheme, kv.bits, kv.group_size))

    def _may_write(self) -> bool:
        return self.settings.cache.has_cold

    def making(self, located: Located, nbytes: int = 0, known_as: str = "") -> Work[Lane]:
        """A lane for a model of about so many bytes; until it is there they are set aside.
        `known_as` is its fingerprint, where that was taken before."""
        settings = self.settings
        kv = settings.kv_cache_of(located.names)
        scheme = make_scheme(kv.scheme, kv.bits, kv.group_size)
        with ExitStack() as undo:
            seat = self.account.seat(nbytes)
            undo.callback(seat.leave)
            yield from self.account.settling()
            notes = _notes(settings, "fingerprints")
            loaded = yield from loading(located.path, notes, scheme, known_as)
            seat.weigh(loaded.weight_bytes)
            lane = yield from self.around(loaded, located, seat)
            yield from lane.runner.warming()
            undo.pop_all()
        return lane

    def around(self, loaded: LoadedModel, located: Located, seat: Seat) -> Work[Lane]:
        """A lane for a model that is loaded."""
        settings, may_write = self.settings, self._may_write
        chunk, notes = limits(settings).prefill_chunk_tokens, _notes(settings, "steps")
        planner = yield from planning_for(loaded, settings, notes, chunk, may_write)
        yield
        settings, shares = self.settings, self.shares  # they may have changed meanwhile
        watch = make_watch(seat, planner, queue=shares.queue)
        seat.settle(
            loaded.weight_bytes,
            partial(cache_budget, shares, planner, limits=limits(settings), settings=settings),
        )
        _tell(seat, shares, planner)
        codec = BlockCodec.of(loaded.model, settings.cache.block_tokens)
        if codec is None:
            name = located.names[0]
            _log.warning("%s runs without reuse: %s", name, why_not_reused(loaded.model))
        if codec is None or not settings.cache.enabled:
            runner, bounds = ModelRunner(loaded), limits(settings)
            _tell_alone(runner, located)
            return Lane(runner, bounds, lambda: NoCache(seat.budget), HotTier(), watch=watch)
        return self._with_cache(loaded, located, codec, watch)

    def _with_cache(
        self, loaded: LoadedModel, located: Located, codec: BlockCodec, watch: MemoryWatch
    ) -> Lane:
        others, seat = self.at_work(), watch.seat
        # Of all models together less than all of the hot tier.
        pin_share = 0.5 if not others else 0.5 ** (len(others) + 2)
        cold = self._cold_for(full_namespace(loaded.fingerprint, codec.layout))
        index, hot = cold.index if cold else None, HotTier[Payload]()
        lane = Lane(
            ModelRunner(loaded, codec, hot.get),
            limits(self.settings),
            lambda: PrefixCache(
                codec.layout, loaded.fingerprint, seat.budget, index, self._pins, pin_share
            ),
            hot,
            cold,
            write_through=self.settings.cache.cold_write_through,
            watch=watch,
        )
        _tell_alone(lane.runner, located)
        if cold is not None:
            name, size = located.names[0], codec.layout.block_size
            cold.describe(lane.cache.namespace, name, located.path, size)
        return lane

    def clear_cold(self, salt: bytes | None = None) -> None:
        """Forget what the cold tier has of any model, of one salt if given."""
        if self.cold is None:
            return
        if salt is None:
            self.cold.clear_all()
        else:
            self.cold.clear_salt(salt)

    def cold_report(self) -> ColdReport | None:
        """What there is of a cold tier now, also while no model is there that looks after it; None
        from when it is left."""
        if self.cold is None:
            return None
        self.cold.collect()
        return self.cold.report()

    def _left(self) -> int:
        """Bytes on the way to the cold tier that no model at work knows of."""
        if self.cold is None or not self.cold.pending:
            return 0
        known = set[BlockKey]().union(*(lane.writing for lane in self.at_work()))
        pending = self.cold.pending.items()
        return sum(block.nbytes for key, block in pending if key not in known)

    def close(self, seconds: float) -> None:
        """The end of the cold tier: what is queued is written as far as `seconds` reach."""
        if self.cold is not None:
            self.cold.close(seconds)

    def at_work(self) -> list[Lane]:
        """Those of models that are loaded."""
        return [seat.tenant for seat in self.account.seats if isinstance(seat.tenant, Lane)]

    def _cold_for(self, namespace: str) -> ColdTier | None:
        """None where another lane writes blocks of the same weights."""
        if any(lane.cache.namespace == namespace for lane in self.at_work()):
            _log.info("the same weights are loaded already: blocks of this model stay in memory")
            return None
        return self._cold_tier()

    def _cold_tier(self) -> ColdTier | None:
        """That of all lanes; it looks at what is there before the first of them."""
        if self.cold is None and self.settings.cache.has_cold:
            self.cold = _cold_tier(self.settings, self._pins, self._remote, self.shares.queue)
            if self.cold is not None:
                self.cold.wake = lambda: self.wake()
                self.cold.start()
        return self.cold


def _tell_alone(runner: ModelRunner, located: Located) -> None:
    if runner.why_alone:
        name = located.names[0]
        _log.warning("%s runs one sequence at a time: %s", name, runner.why_alone)


def _tell(seat: Seat, shares: Shares, planner: Planner) -> None:
    weights = seat.account.weights
    if weights > shares.limit:
        _log.error(
            "the weights (%s) are more than memory.limit (%s): no request will be served",
            *map(in_words, (weights, shares.limit)),
        )
    _log.info(
        "memory: %s for all, weights %s, hot tier %s",
        *map(in_words, (shares.limit, weights, seat.budget.nbytes)),
    )


def _notes(settings: Settings, name: str) -> Path | None:
    """Where such things are noted down."""
    return settings.cache.cold_dir / f"{name}.json" if settings.cache.has_cold else None


def _remote(settings: Settings) -> Medium | None:
    """The store of bytes that is named, if any. Raises ConfigError; connects later."""
    cache = settings.cache
    url = cache.remote.reveal()
    if not url or not cache.has_cold:
        return None
    medium = open_remote(url, timeout=_REMOTE_SECONDS, ttl_days=cache.cold_ttl_days)
    return Guarded(medium, _REMOTE_SECONDS)


def _cold_tier(
    settings: Settings, pins: Pins, remote: Medium | None, queue: int
) -> ColdTier | None:
    """The tier on disk or elsewhere. A directory that can't be used costs that tier, not the
    server."""
    cache = settings.cache
    root = cache.cold_dir
    try:
        lock = Lock(root)
        writable = lock.acquire()
        home = Files(root, writable=writable, min_free_bytes=cache.cold_min_free_disk)
        key = secret(root)
    except MediumError as error:
        _log.warning("%s can't be used, blocks live in memory only: %s", root, error)
        return None
    home.remember_secret(key)
    if not writable and remote is None:
        _log.warning(
            "another server writes to %s: this one reads there and writes nothing, until that ends",
            root,
        )
    return ColdTier(
        Apart(remote, key) if remote else home,
        key,
        budget=cache.cold_cache_max_bytes,
        queue_bytes=queue,
        ttl_days=cache.cold_ttl_days,
        home=home,
        lock=lock if remote is None else None,
        pins=pins,
    )
