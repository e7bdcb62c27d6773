"""Runs one fleet: machines, a router, a cold tier, and the users' traffic; counts what happens."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from scripts.scaling.assumptions import BASE, BLOCK_TOKENS, FINE, Assumptions, Scale
from scripts.scaling.events import Events
from scripts.scaling.machine import Server
from scripts.scaling.routers import ROUTERS, Loads, PrefixAware
from scripts.scaling.store import SharedStore
from scripts.scaling.traffic import Piece, Request, Traffic


class Tier(StrEnum):
    """The cold tier of each machine."""

    NONE = "none"
    SSD = "own SSD"
    REMOTE = "shared, written through"
    REMOTE_EVICTED = "shared, evicted only"


@dataclass(frozen=True, slots=True)
class Setup:
    """A fleet. `boxes`: of the shared store; None for one for each ten machines."""

    machines: int
    router: str
    tier: Tier = Tier.SSD
    scale: Scale = FINE
    assumed: Assumptions = BASE
    boxes: int | None = None
    seed: int = 1


@dataclass(slots=True)
class Outcome:
    """What was counted of requests that arrived after the warm-up and got a first token. Tokens are
    real ones; bytes and names are a second's; `share` is of the busiest machine's requests over the
    mean."""

    requests: int = 0
    prompt_tokens: int = 0
    hit_tokens: int = 0
    cold_tokens: int = 0
    endless_tokens: int = 0
    first_tokens: list[float] = field(default_factory=list)
    turns_per_user_hour: float = 0.0
    busy: float = 0.0
    share: float = 0.0
    blocks: float = 0.0
    cold_entries: float = 0.0
    tree_tokens: int = 0
    tree_places: int = 0
    client_bytes: float = 0.0
    store_read: float = 0.0
    store_written: float = 0.0
    store_names: float = 0.0
    store_failed: int = 0
    dropped: float = 0.0

    @property
    def hit_rate(self) -> float:
        return self.hit_tokens / max(1, self.prompt_tokens)

    @property
    def endless_rate(self) -> float:
        """The hit rate of one cache without an end that all machines share."""
        return self.endless_tokens / max(1, self.prompt_tokens)

    def first_token(self, share: float) -> float:
        """The seconds within which such a `share` of the requests got a first token."""
        ordered = sorted(self.first_tokens)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


class Fleet:
    """One run. `requests` are all that were sent, in their order."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        scale, assumed = setup.scale, setup.assumed
        self._events = Events()
        self._loads = Loads(setup.machines, random.Random(f"{setup.seed} loads"))
        self.router = ROUTERS[setup.router](self._loads)
        self.store: SharedStore | None = None
        if setup.tier in (Tier.REMOTE, Tier.REMOTE_EVICTED):
            boxes = setup.boxes or -(-setup.machines // assumed.network.machines_per_store)
            call_bytes = BLOCK_TOKENS * assumed.machine.kv_bytes_per_token
            self.store = SharedStore(self._events, assumed.network, boxes, call_bytes)
        self.servers = [self._server() for _ in range(setup.machines)]
        self.requests: list[Request] = []
        self._seen: set[Piece] = set()
        users = setup.machines * assumed.agents.users_per_machine
        self.traffic = Traffic(self._events, assumed.agents, scale, users, setup.seed, self._send)

    def run(self) -> Outcome:
        """Run to the end. To be called once."""
        scale = self.setup.scale
        self._events.run(scale.warm)
        before = self._totals()
        self._events.run(scale.end)
        seconds = scale.end - scale.warm
        rates = [
            (after - start) / seconds for start, after in zip(before, self._totals(), strict=True)
        ]
        outcome = Outcome()
        for request in self.requests:
            if request.arrived >= scale.warm and request.first_token is not None:
                self._count(outcome, request)
        turns, outcome.busy, read, written, names, dropped = rates
        users = self.setup.machines * self.setup.assumed.agents.users_per_machine
        outcome.turns_per_user_hour = 3600 * turns / users
        outcome.busy /= self.setup.machines
        outcome.store_read, outcome.store_written, outcome.store_names = read, written, names
        outcome.dropped = dropped
        outcome.client_bytes /= seconds
        self._count_indexes(outcome)
        return outcome

    # -- inside --------------------------------------------------------------------------

    def _server(self) -> Server:
        tier = self.setup.tier
        return Server(
            self._events,
            self.setup.assumed,
            self.setup.scale,
            has_cold=tier is not Tier.NONE,
            store=self.store,
            writes_through=tier is Tier.REMOTE,
            answered=self._answered,
        )

    def _send(self, request: Request) -> None:
        self.requests.append(request)
        request.known = self._known(request)
        request.machine = self.router.choose(request)
        self._loads.add(request.machine, 1)
        self.servers[request.machine].take(request)

    def _answered(self, request: Request) -> None:
        self._loads.add(request.machine, -1)
        self._seen.add(request.answer)
        request.forget_prompt()
        self.traffic.answered(request)

    def _known(self, request: Request) -> int:
        """How many tokens of a prompt were asked before, anywhere. Notes that it is asked now."""
        known, all_seen = 0, True
        for piece in request.pieces:
            all_seen = all_seen and piece in self._seen
            known += len(piece.tokens) if all_seen else 0
        self._seen.update(request.pieces)
        return known

    def _totals(self) -> Sequence[float]:
        store = self.store
        colds = [server.cold for server in self.servers if server.cold is not None]
        return (
            self.traffic.turns,
            sum(server.busy_seconds for server in self.servers),
            store.out.carried if store else 0,
            store.into.carried if store else 0,
            store.asked if store else 0,
            sum(cold.dropped_bytes for cold in colds),
        )

    def _count(self, outcome: Outcome, request: Request) -> None:
        unit, network = self.setup.scale.unit, self.setup.assumed.network
        assert request.first_token is not None
        outcome.requests += 1
        outcome.prompt_tokens += request.length * unit
        outcome.hit_tokens += request.cached * unit
        outcome.cold_tokens += request.cold * unit
        outcome.endless_tokens += request.known * unit
        outcome.first_tokens.append(request.first_token)
        sent = request.length * unit * network.bytes_per_token
        outcome.client_bytes += sent + request.answer_tokens * network.bytes_per_event

    def _count_indexes(self, outcome: Outcome) -> None:
        machines, servers = self.setup.machines, self.servers
        counted = [0] * machines
        for request in self.requests:
            counted[request.machine] += request.arrived >= self.setup.scale.warm
        outcome.share = max(counted) * machines / max(1, sum(counted))
        outcome.blocks = sum(len(server.cache.index) for server in servers) / machines
        colds = [server.cold for server in servers if server.cold is not None]
        outcome.cold_entries = sum(len(cold.index) for cold in colds) / machines
        outcome.store_failed = self.store.failed if self.store else 0
        if isinstance(self.router, PrefixAware):
            outcome.tree_tokens = self.router.tokens * self.setup.scale.unit
            outcome.tree_places = self.router.places
