"""An engine for a model: its caches, tiers and limits as the settings want them."""

import logging
from collections.abc import Callable
from pathlib import Path

from omlx_server.build.memory import cache_budget, make_planner, make_watch, shares_of
from omlx_server.build.readers import ReaderModels
from omlx_server.compute import device
from omlx_server.compute.kv.choice import make_scheme
from omlx_server.compute.loader import LoadedModel, load
from omlx_server.compute.payload import BlockCodec, Payload
from omlx_server.compute.runner import ModelRunner
from omlx_server.core.limits import Limits
from omlx_server.core.no_cache import NoCache
from omlx_server.core.pins import Pins
from omlx_server.core.prefix_cache import PrefixCache
from omlx_server.engine.client import AsyncEngine
from omlx_server.engine.lane import Lane
from omlx_server.models.locate import Located
from omlx_server.settings import Settings
from omlx_server.store.breaker import Guarded
from omlx_server.store.cold import ColdTier
from omlx_server.store.files import Files
from omlx_server.store.hot import HotTier
from omlx_server.store.lock import Lock
from omlx_server.store.medium import Medium, MediumError
from omlx_server.store.remote import Apart, open_remote
from omlx_server.store.secret import secret

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
        halve_chunks_at=device.halve_chunks_at(),
    )


def make_engine(
    located: Located,
    settings: Settings,
    on_failure: Callable[[str], None] = _log.critical,
    readers: ReaderModels | None = None,
) -> AsyncEngine:
    """An engine for a model; its thread loads it when it starts, after `readers`."""
    notes, remote = notes_of(settings), _remote(settings)
    kv = settings.kv_cache_of(located.names)
    scheme = make_scheme(kv.scheme, kv.bits, kv.group_size)

    def make() -> Lane:
        beside = readers.start() if readers else 0
        return make_lane(load(located.path, notes, scheme), settings, located, remote, beside)

    return AsyncEngine(make, on_failure)


def make_lane(
    loaded: LoadedModel,
    settings: Settings,
    located: Located,
    remote: Medium | None = None,
    beside: int = 0,
) -> Lane:
    """One model at work. `remote` is where blocks go instead of files; other models hold `beside`
    bytes of the memory."""
    weights = loaded.weight_bytes + beside
    shares = shares_of(settings, cold=_goes_to_disk(settings))
    bounds, notes = limits(settings), _notes(settings, "steps")
    planner = make_planner(loaded, settings, notes, bounds.prefill_chunk_tokens)
    watch = make_watch(shares, planner, weights)
    budget = cache_budget(shares, planner, weights, bounds, settings)
    codec = BlockCodec.of(loaded.model, settings.cache.block_tokens)
    if codec is None:
        _log.warning("this model has a kind of cache that is not known: it runs without reuse")
    hot: HotTier[Payload] = HotTier()
    if codec is None or not settings.cache.enabled:
        runner = ModelRunner(loaded)
        return Lane(runner, bounds, lambda: NoCache(budget), hot, watch=watch)
    pins = Pins()
    cold = _cold_tier(settings, pins, remote, shares.queue) if _goes_to_disk(settings) else None
    index = cold.index if cold else None
    lane = Lane(
        ModelRunner(loaded, codec, hot.get),
        bounds,
        lambda: PrefixCache(codec.layout, loaded.fingerprint, budget, index, pins),
        hot,
        cold,
        write_through=settings.cache.cold_write_through,
        watch=watch,
    )
    if cold is not None:
        name, size = located.names[0], codec.layout.block_size
        cold.describe(lane.cache.namespace, name, located.path, size)
    return lane


def notes_of(settings: Settings) -> Path | None:
    """Where the fingerprints of weights are noted down."""
    return _notes(settings, "fingerprints")


def _notes(settings: Settings, name: str) -> Path | None:
    return settings.cache.cold_dir / f"{name}.json" if _goes_to_disk(settings) else None


def _goes_to_disk(settings: Settings) -> bool:
    return settings.cache.enabled and not settings.cache.hot_cache_only


def _remote(settings: Settings) -> Medium | None:
    """The store of bytes that is named, if any. Raises ConfigError; connects later."""
    cache = settings.cache
    url = cache.remote.get_secret_value()
    if not url or not _goes_to_disk(settings):
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
        _log.warning("another server writes to %s: this one reads there, until that one ends", root)
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
