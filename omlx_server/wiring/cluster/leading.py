"""Rank 0's part of a model, loaded once all ranks are there. Lives on the mlx thread."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from omlx_server.compute.cluster.part import loading_part, room_of_all
from omlx_server.compute.cluster.ranks import ConnectedRanks, connect_ranks
from omlx_server.compute.hardware import device
from omlx_server.compute.kv.schemes.base import Scheme
from omlx_server.compute.model.loader import LoadedModel
from omlx_server.core.cluster.handshake import Alive, Welcome
from omlx_server.core.cluster.state import RankState, RankStatus
from omlx_server.core.work import Work
from omlx_server.errors import ModelUnavailable, OmlxError
from omlx_server.models.locate import Located
from omlx_server.settings import Settings
from omlx_server.wiring.cluster.gathering import CAUSE_SECONDS, Gathering
from omlx_server.wiring.cluster.identity import free_addresses
from omlx_server.wiring.cluster.options import GatheringOptions

_log = logging.getLogger(__name__)
_POLL_SECONDS = 0.01
_NO_IMAGES = "several machines compute it"
_SAY_SECONDS = 10.0
# A rank whose answer is older may be gone unnoticed.
_FRESH_SECONDS = 3.0

A = TypeVar("A")


class LeadingCluster:
    """The cluster that computes the model which the server was started with."""

    def __init__(self, options: GatheringOptions, backend: str) -> None:
        self.gathering = Gathering(options)
        self._backend = backend
        self._ranks: ConnectedRanks | None = None
        self._path: Path | None = None

    def claims(self, located: Located) -> bool:
        """Return whether the cluster computes this model: the first one asked about."""
        self._path = self._path or located.path
        return self._path == located.path

    @property
    def states(self) -> list[RankState]:
        leader = self.gathering.options.hosts[0]
        alive = Alive(active=device.active_memory(), peak=device.peak_memory())
        host = leader.ssh or "localhost"
        here = RankState(0, host, RankStatus.HERE, self.gathering.problem, alive)
        return [here, *self.gathering.states]

    def loading(
        self,
        located: Located,
        known_as: str,
        settings: Settings,
        scheme: Scheme | None,
        limit: Callable[[], int],
        wake: Callable[[], None],
    ) -> Work[tuple[LoadedModel, int]]:
        """Load rank 0's part. Return it and the bytes that it may use beside its weights: what
        every rank has of its `limit`. `wake` is called when a rank has answered."""
        ranks = yield from self.joining(located, known_as, settings)
        ranks.followers.wake = wake
        loaded = yield from loading_part(located.path, ranks, known_as, scheme)
        room = room_of_all(loaded, ranks, limit() - loaded.weight_bytes)
        return replace(loaded, why_no_vision=_NO_IMAGES), room

    def joining(self, located: Located, known_as: str, settings: Settings) -> Work[ConnectedRanks]:
        """Wait until all ranks have the model, and connect them."""
        kv = settings.kv_cache_of(located.names)
        self.gathering.begin(
            Welcome(
                size=self.gathering.size,
                ips=(),
                names=(*located.names, str(located.path)),
                fingerprint=known_as,
                kv=(kv.scheme, kv.bits, kv.group_size),
                block_tokens=settings.cache.block_tokens if settings.cache.enabled else 0,
                has_cold=settings.cache.has_cold,
                rdma=self.gathering.options.rdma,
            )
        )
        addresses = yield from self._all_there()
        ranks = self._ranks = self._ranks or self._connected(addresses)
        self.gathering.mark_formed()
        ranks.lead(self.gathering.tell)
        ranks.followers.step_failed = self.gathering.step_failed
        self.gathering.found = ranks.followers.receive
        return ranks

    def outliving(self, work: Work[A]) -> Work[A]:
        """Run `work`. After the loss of a rank wait for the process to start anew."""
        try:
            return (yield from work)
        except (OmlxError, RuntimeError, ValueError):  # the latter two are MLX's
            end = time.monotonic() + CAUSE_SECONDS
            while not self.gathering.is_lost:
                if time.monotonic() > end:
                    raise
                time.sleep(_POLL_SECONDS)
                yield
        while True:
            time.sleep(_POLL_SECONDS)
            yield

    def _all_there(self) -> Work[Sequence[Sequence[str]]]:
        """Wait until all ranks have just answered; return their addresses."""
        ips = self.gathering.options.hosts[0].ips
        while True:
            yield from self._waiting()
            self.gathering.call_roll()
            called = time.monotonic()
            yield from self._waiting()
            if time.monotonic() - called < _FRESH_SECONDS:
                addresses = self.gathering.form(free_addresses(ips))
                if addresses is not None:
                    return addresses

    def _connected(self, addresses: Sequence[Sequence[str]]) -> ConnectedRanks:
        try:
            ranks = connect_ranks(addresses, 0, self._backend, self.gathering.options.rdma)
        except TimeoutError as error:
            raise ModelUnavailable(self.gathering.step_failed(str(error))) from error
        _log.info("%d ranks are connected (%s)", ranks.size, self._backend)
        return ranks

    def _waiting(self) -> Work[None]:
        said = time.monotonic()
        while not self.gathering.is_complete:
            now = time.monotonic()
            if now - said > _SAY_SECONDS:
                said = now
                for state in self.gathering.states:
                    _log.warning(
                        "rank %d (%s) is %s%s",
                        state.rank,
                        state.host,
                        state.status.value,
                        f": {state.problem}" if state.problem else "",
                    )
            time.sleep(_POLL_SECONDS)
            yield
