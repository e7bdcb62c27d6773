"""Makes model instances from the settings."""

import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

from omlx_server.compute.architectures.pair import Headed, Pair
from omlx_server.compute.hardware import device, device_policy
from omlx_server.compute.kv.schemes.base import Scheme
from omlx_server.compute.model.fingerprint import fingerprint, system_fingerprint
from omlx_server.compute.model.loader import LoadedModel, loading
from omlx_server.compute.model.pairing import check_can_draft, paired
from omlx_server.compute.payload import BlockCodec, Payload, why_not_reused
from omlx_server.compute.planning.step_costs import (
    forward_of,
    forward_of_heads,
    measuring_step_costs,
)
from omlx_server.compute.quantise import make_scheme
from omlx_server.compute.runner import ModelRunner
from omlx_server.core.blocks.block import NOTHING_KEPT, PayloadId
from omlx_server.core.blocks.keys import BlockKey
from omlx_server.core.blocks.pins import Pins
from omlx_server.core.chunk_sizes import ChunkSizes
from omlx_server.core.cold.index import ColdReport
from omlx_server.core.dispatch_limit import DispatchLimit
from omlx_server.core.memory.estimate import Planner
from omlx_server.core.memory.ledger import in_words
from omlx_server.core.prefix_cache.prefix_cache import PrefixCache
from omlx_server.core.scheduler.limits import SchedulerLimits
from omlx_server.core.speculation.methods import Method
from omlx_server.core.speculation.speculation import DraftController, DrafterRecord
from omlx_server.core.work import Work
from omlx_server.engine.memory.account import MemoryAccount, MemoryShare, MemoryWatch
from omlx_server.engine.memory.adapters import AdapterLimits
from omlx_server.engine.model_instance import ModelInstance
from omlx_server.engine.pin_board import PinBoard
from omlx_server.models.locate import Located
from omlx_server.settings import Settings
from omlx_server.store.cold import ColdTier
from omlx_server.store.mediums.breaker import GuardedMedium
from omlx_server.store.mediums.medium import Medium
from omlx_server.store.mediums.remote import open_remote
from omlx_server.wiring.chunks import choosing, default_chunks, longest_dispatch
from omlx_server.wiring.cluster.leading import LeadingCluster
from omlx_server.wiring.cold import make_cold_tier
from omlx_server.wiring.images import why_no_vision
from omlx_server.wiring.memory import (
    Shares,
    cache_budget,
    experts_on_disk,
    make_watch,
    planning_for,
    shares_of,
)

_log = logging.getLogger(__name__)
# A slower call to a remote store is a miss; five of them are an outage.
_REMOTE_SECONDS = 2.0


def limits(
    settings: Settings, names: Sequence[str] = (), chunks: ChunkSizes | None = None
) -> SchedulerLimits:
    """Return the limits of a model's scheduler, by its measured `chunks`, if any."""
    scheduler, chunks = settings.scheduler, chunks or default_chunks(settings)
    longest = longest_dispatch(settings)
    return SchedulerLimits(
        max_batch_size=scheduler.max_batch_size,
        max_queue=scheduler.max_queue,
        prefill_chunk_tokens=chunks.beside,
        alone_chunk_tokens=chunks.alone,
        max_batched_tokens=scheduler.max_batched_tokens,
        decode_share=scheduler.decode_share,
        fair=scheduler.policy == "fair",
        halve_chunks_at=device_policy.current().halved,
        dispatch=DispatchLimit(longest, chunks.pace) if longest and chunks.pace else None,
        speculation=settings.speculation_of(names).mode,
        most_places=device_policy.current().places,
        most_joins=device_policy.current().joins,
    )


def adapter_limits(settings: Settings) -> AdapterLimits:
    return AdapterLimits(settings.adapters.max_loaded, settings.adapters.max_bytes)


class InstanceFactory:
    """Makes the model instances of one server, on the mlx thread. They share the memory account and
    the cold tier. `settings` may be replaced at any time."""

    def __init__(
        self,
        settings: Settings,
        wake: Callable[[], None] = lambda: None,
        cluster: LeadingCluster | None = None,
    ) -> None:
        """`wake` is called, on any thread, when the cold tier has a result. Raises ConfigError for
        an unusable remote store."""
        self.settings = settings
        self.cluster = cluster
        self.cold: ColdTier | None = None
        self.shares = shares_of(settings, cold=settings.cache.has_cold)
        device.limit_memory(pool=self.shares.pool, wired=self.shares.wired)
        self.account = MemoryAccount(self.shares.limit, self.shares.queue, self._left)
        self._remote = _remote(settings)
        self._pins = Pins()
        self.pins = PinBoard(self._pins, self.at_work, lambda: self.cold)
        self.wake = wake

    def fingerprint(self, located: Located, *, whole: bool = False) -> str:
        """Return the fingerprint of a model's files: of all bytes if `whole` or with a cold tier,
        else of samples. Any thread."""
        notes = _notes(self.settings, "fingerprints")
        return fingerprint(located.path, notes, whole=whole, allowed=self._may_write)

    def system_fingerprint(self, located: Located) -> str:
        """Return the fingerprint of weights, KV format, device and versions. Any thread."""
        return system_fingerprint(located.path, self._scheme(located))

    def watches_machine(self) -> bool:
        return self.settings.memory.pressure == "auto"

    def _may_write(self) -> bool:
        return self.settings.cache.has_cold

    def making(
        self,
        located: Located,
        nbytes: int = 0,
        known_as: str = "",
        drafter: tuple[Located, str] | None = None,
    ) -> Work[ModelInstance]:
        """Load a model and make its instance. `nbytes` are set aside meanwhile; `known_as` is its
        fingerprint, `drafter` its draft model and that one's. Raises ModelUnavailable."""
        work = self._making(located, nbytes, known_as, drafter)
        return work if self.cluster is None else self.cluster.outliving(work)

    def _making(
        self, located: Located, nbytes: int, known_as: str, drafter: tuple[Located, str] | None
    ) -> Work[ModelInstance]:
        with ExitStack() as undo:
            share = self.account.share(nbytes)
            undo.callback(share.leave)
            yield from self.account.wait_for_jobs()
            if self.cluster is not None and self._is_parted(self.cluster, located):
                if drafter is not None:
                    _log.warning("what several machines compute has no draft model")
                if self.settings.overrides_of(located.names).experts == "disk":
                    _log.warning("what several machines compute has all its experts in memory")
                loaded = yield from self._part(self.cluster, located, known_as)
            else:
                loaded = yield from self._whole(located, known_as, drafter)
            share.set_weights(loaded.weight_bytes)
            instance = yield from self.around(loaded, located, share)
            yield from instance.runner.warming()
            undo.pop_all()
        return instance

    @property
    def has_lost_a_rank(self) -> bool:
        return self.cluster is not None and bool(self.cluster.gathering.problem)

    def _is_parted(self, cluster: LeadingCluster, located: Located) -> bool:
        is_taken = any(instance.ranks.are_several for instance in self.at_work())
        return cluster.claims(located) and not is_taken

    def _part(self, cluster: LeadingCluster, located: Located, known_as: str) -> Work[LoadedModel]:
        """Load the part of rank 0, within the memory that every rank has."""
        loaded, room = yield from cluster.loading(
            located,
            known_as,
            self.settings,
            self._scheme(located),
            lambda: self.shares.limit,
            lambda: self.wake(),
        )
        if room < self.shares.limit - loaded.weight_bytes:
            self.shares = replace(self.shares, limit=loaded.weight_bytes + room)
            self.account.limit = self.shares.limit
            _log.info("another rank has less memory: this one uses %s", in_words(room))
        return loaded

    def _whole(
        self, located: Located, known_as: str, drafter: tuple[Located, str] | None
    ) -> Work[LoadedModel]:
        other, notes = None, _notes(self.settings, "fingerprints")
        if drafter is not None:  # first, because it may not fit
            smaller, fingerprint = drafter
            other = yield from loading(smaller.path, notes, known_as=fingerprint)
            check_can_draft(other)
        heads = other is None and self.settings.speculation_of(located.names).mode == "heads"
        blind = why_no_vision(located, self.settings)
        scheme = self._scheme(located)
        on_disk = experts_on_disk(located, self.settings, self.shares.limit)
        loaded = yield from loading(
            located.path, notes, scheme, known_as, heads=heads, vision=not blind, on_disk=on_disk
        )
        loaded = replace(loaded, why_no_vision=blind) if blind else loaded
        return paired(loaded, other) if other is not None else loaded

    def _scheme(self, located: Located) -> Scheme | None:
        kv = self.settings.kv_cache_of(located.names)
        return make_scheme(kv.scheme, kv.bits, kv.group_size)

    def around(
        self, loaded: LoadedModel, located: Located, share: MemoryShare
    ) -> Work[ModelInstance]:
        settings, may_write, notes = self.settings, self._may_write, _notes(self.settings, "steps")
        planner = yield from planning_for(loaded, settings, notes, may_write)
        room = self.shares.limit - loaded.weight_bytes
        chunks = yield from choosing(loaded, settings, planner, room, notes, may_write)
        planner.chunk = chunks.alone
        speculation = yield from self._speculating(loaded, located)
        settings, shares = self.settings, self.shares  # they may have changed during the probes
        bounds = limits(settings, located.names, chunks)
        watch = make_watch(share, planner, queue=shares.queue)
        share.set_weights_and_budget(
            loaded.weight_bytes,
            partial(cache_budget, shares, planner, limits=bounds, settings=settings),
        )
        _tell(share, shares, planner)
        codec = BlockCodec.of(loaded.model, settings.cache.block_tokens)
        if codec is None:
            name = located.names[0]
            _log.warning("%s runs without reuse: %s", name, why_not_reused(loaded.model))
        codec = codec if settings.cache.enabled else None
        instance = self._instance(loaded, located, codec, watch, speculation, bounds)
        instance.cache.read_ahead.rates.seconds_per_token = chunks.token_seconds
        return instance

    def _speculating(self, loaded: LoadedModel, located: Located) -> Work[DraftController]:
        fresh = forward_of(loaded.target, loaded.ranks)
        costs = yield from measuring_step_costs(fresh, device_policy.current().places)
        rows = limits(self.settings, located.names).max_batch_size
        match loaded.model:
            case Pair(drafter=drafter):
                drafting = yield from measuring_step_costs(forward_of(drafter), rows)
                return DraftController(costs, DrafterRecord(Method.DRAFT, drafting))
            case Headed() as headed:
                drafting = yield from measuring_step_costs(forward_of_heads(headed), rows)
                return DraftController(costs, DrafterRecord(Method.HEADS, drafting))
        return DraftController(costs)

    def _instance(
        self,
        loaded: LoadedModel,
        located: Located,
        codec: BlockCodec | None,
        watch: MemoryWatch,
        speculation: DraftController,
        bounds: SchedulerLimits,
    ) -> ModelInstance:
        """Make an instance, which caches no blocks without a `codec`."""
        name, others, share = located.names[0], self.at_work(), watch.share
        # This model's pins may hold so much of the hot tier; the sum over all models is below 1.
        pin_share = 0.5 if not others else 0.5 ** (len(others) + 2)
        layout, weights = (codec.layout, loaded.fingerprint) if codec else (NOTHING_KEPT, "none")
        cold = self._cold_for(layout.namespace(weights)) if codec else None
        index, hot = cold.index if cold else None, dict[PayloadId, Payload]()
        instance = ModelInstance(
            ModelRunner(loaded, codec, hot.__getitem__),
            bounds,
            lambda: PrefixCache(layout, weights, share.budget, index, self._pins, pin_share),
            hot,
            cold,
            write_through=self.settings.cache.cold_write_through,
            watch=watch,
            speculation=speculation,
            names=located.names,
        )
        instance.adapters.limits = adapter_limits(self.settings)
        if why := instance.runner.why_alone:
            _log.warning("%s runs one sequence at a time: %s", name, why)
        if cold is not None:
            cold.describe(instance.cache.namespace, name, located.path, layout.block_size)
        return instance

    def clear_cold(self, salt: bytes | None = None) -> None:
        """Delete the blocks of all models in the cold tier, or those of one `salt`."""
        if self.cold is None:
            return
        if salt is None:
            self.cold.clear_all()
            for instance in self.at_work():
                instance.ranks.clear_all()
        else:
            self.cold.clear_salt(salt)

    def cold_report(self) -> ColdReport | None:
        """Return an up-to-date report of the cold tier."""
        if self.cold is None:
            return None
        self.cold.collect()
        return self.cold.report()

    def _left(self) -> int:
        if self.cold is None or not self.cold.pending:
            return 0
        loaded = set[BlockKey]().union(*(instance.tiers.writing for instance in self.at_work()))
        pending = self.cold.pending.items()
        return sum(block.nbytes for key, block in pending if key not in loaded)

    def drain(self, seconds: float) -> None:
        """Wait at most `seconds` for writes to the cold tier. Any thread."""
        if self.cold is not None:
            self.cold.drain(seconds)

    def close(self, seconds: float) -> None:
        if self.cold is not None:
            self.cold.close(seconds)

    def at_work(self) -> list[ModelInstance]:
        return [
            share.holder for share in self.account.shares if isinstance(share.holder, ModelInstance)
        ]

    def _cold_for(self, namespace: str) -> ColdTier | None:
        """Return the shared cold tier, started if needed; None if another instance writes the same
        blocks."""
        if any(instance.cache.namespace == namespace for instance in self.at_work()):
            _log.info("the same weights are loaded already: blocks of this model stay in memory")
            return None
        if self.cold is None and self.settings.cache.has_cold:
            self.cold = make_cold_tier(self.settings, self._pins, self._remote, self.shares.queue)
            if self.cold is not None:
                self.cold.wake = lambda: self.wake()
                self.cold.start()
        return self.cold


def _tell(share: MemoryShare, shares: Shares, planner: Planner) -> None:
    weights = share.account.weights
    if weights > shares.limit:
        _log.error(
            "the weights (%s) are more than memory.limit (%s): no request will be served",
            *map(in_words, (weights, shares.limit)),
        )
    _log.info(
        "memory: %s for all, weights %s, hot tier %s",
        *map(in_words, (shares.limit, weights, share.budget.nbytes)),
    )


def _notes(settings: Settings, name: str) -> Path | None:
    return settings.cache.cold_dir / f"{name}.json" if settings.cache.has_cold else None


def _remote(settings: Settings) -> Medium | None:
    """Return the remote store, if set. Raises ConfigError."""
    cache = settings.cache
    url = cache.remote.reveal()
    if not url or not cache.has_cold:
        return None
    medium = open_remote(url, timeout=_REMOTE_SECONDS, ttl_days=cache.cold_ttl_days)
    return GuardedMedium(medium, _REMOTE_SECONDS)
