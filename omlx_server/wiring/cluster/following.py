"""Another rank's part of the model that rank 0 names."""

from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from omlx_server.compute.cluster.part import loading_part, room_of_all
from omlx_server.compute.cluster.ranks import ConnectedRanks
from omlx_server.compute.hardware import device
from omlx_server.compute.model.fingerprint import fingerprint
from omlx_server.compute.payload import BlockCodec
from omlx_server.compute.quantise import make_scheme
from omlx_server.core.blocks.pins import Pins
from omlx_server.core.cluster.handshake import Welcome
from omlx_server.core.work import finish
from omlx_server.engine.cluster.follower import Follower
from omlx_server.errors import ModelUnavailable
from omlx_server.models.locate import find_here
from omlx_server.settings import Settings
from omlx_server.store.cold import ColdTier
from omlx_server.wiring.cold import make_cold_tier
from omlx_server.wiring.memory import shares_of


def find_model(welcome: Welcome, settings: Settings) -> Path:
    """Return the directory of rank 0's model. Raises ModelUnavailable if none has the same
    files."""
    others = list[Path]()
    for name in welcome.names:
        try:
            match = find_here(name, settings.models)
        except ModelUnavailable:
            continue
        if match is not None and match.path not in others:
            if _fingerprint(match.path, welcome, settings) == welcome.fingerprint:
                return match.path
            others.append(match.path)
    name = welcome.names[0]
    if others:
        raise ModelUnavailable(f"{others[0]} is another model than the {name} of rank 0")
    raise ModelUnavailable(f"there is no {name} here (omlx-server pull {name})")


def _fingerprint(path: Path, welcome: Welcome, settings: Settings) -> str:
    notes = settings.cache.cold_dir / "fingerprints.json" if welcome.has_cold else None
    return fingerprint(path, notes, whole=welcome.has_cold)


def load_part(
    path: Path,
    welcome: Welcome,
    ranks: ConnectedRanks,
    settings: Settings,
    answer: Callable[[object], None],
    wake: Callable[[], None],
) -> Follower:
    """Load this rank's part. `answer` sends to rank 0; `wake` is called when the cold tier has a
    result. Raises ModelUnavailable."""
    shares = shares_of(settings, cold=welcome.has_cold)
    device.limit_memory(pool=shares.pool, wired=shares.wired)
    scheme = make_scheme(*welcome.kv)
    loaded = finish(loading_part(path, ranks, welcome.fingerprint, scheme))
    room_of_all(loaded, ranks, shares.limit - loaded.weight_bytes)
    codec = BlockCodec.of(loaded.model, welcome.block_tokens) if welcome.block_tokens else None
    namespace = codec.layout.namespace(loaded.fingerprint) if codec else ""
    cold = _cold(welcome, settings, ranks, shares.queue) if codec else None
    if cold is not None:
        cold.wake = wake
        cold.start()
        cold.describe(namespace, f"{welcome.names[0]} ({_part(ranks)})", path, welcome.block_tokens)
    return Follower(loaded, codec, cold, namespace, answer)


def _cold(
    welcome: Welcome, settings: Settings, ranks: ConnectedRanks, queue: int
) -> ColdTier | None:
    if not welcome.has_cold:
        return None
    cold_dir = settings.cache.cold_dir
    directory = cold_dir.with_name(f"{cold_dir.name}-{_part(ranks).replace(' ', '-')}")
    apart = replace(settings, cache=replace(settings.cache, cold_dir=directory))
    return make_cold_tier(apart, Pins(), None, queue)


def _part(ranks: ConnectedRanks) -> str:
    return f"rank {ranks.rank} of {ranks.size}"
