"""Makes the cold tier of a server or a rank."""

import logging

from omlx_server.core.blocks.pins import Pins
from omlx_server.settings import Settings
from omlx_server.store.cold import ColdTier
from omlx_server.store.files import Files
from omlx_server.store.lock import Lock
from omlx_server.store.mediums.medium import Medium, MediumError
from omlx_server.store.secret import load_secret

_log = logging.getLogger(__name__)


def make_cold_tier(
    settings: Settings, pins: Pins, remote: Medium | None, queue: int
) -> ColdTier | None:
    """Return the cold tier; None, with a warning, if its directory can't be used."""
    cache = settings.cache
    root = cache.cold_dir
    try:
        lock = Lock(root)
        writable = lock.acquire()
        home = Files(root, writable=writable, min_free_bytes=cache.cold_min_free_disk)
        key = load_secret(root)
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
        home,
        key,
        budget=cache.cold_cache_max_bytes,
        queue_bytes=queue,
        ttl_days=cache.cold_ttl_days,
        remote=remote,
        lock=lock if remote is None else None,
        pins=pins,
        daily_bytes=cache.cold_writes_per_day,
    )
