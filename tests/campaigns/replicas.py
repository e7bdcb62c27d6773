"""Three servers behind a prefix-aware router, with a Redis that they share: `scripts/campaign
replicas`.

Agents' sessions are answered by one large server first: that tells the right texts, and how many
prompt tokens can come from a cache. The same requests go to replicas with a third of its memory
each, with prefix routing and without, with a shared store and without. Then, under traffic, one
replica is stopped, and one is killed. The commands are those of docs/replicas.md.
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.api.harness import UNPROBED, serving, wait_for
from tests.campaigns.agent_sessions import Endpoint, Heard, Load, Pass, Sessions
from tests.campaigns.replica_fleet import Fleet, Model, Replica, Router, free_port, program_of
from tests.campaigns.replica_page import Recipe, read
from tests.store.redis_server import RedisServer

LEAST_SHARE = 0.9
"""Of the hits of one large server, with a shared store."""

_SHOWN = 3
_PASSES = 5

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Size:
    """`count` replicas whose hot caches have `hot_bytes` each. `traffic` is what all setups are
    asked; `disturbed` is asked while a replica ends, and has long answers."""

    count: int
    hot_bytes: int
    traffic: Load
    disturbed: Load


FULL = Size(
    count=3,
    hot_bytes=5 << 20,
    traffic=Load(sessions=18, turns=6, clients=6, system=200, words=40, tokens=12),
    disturbed=Load(sessions=12, turns=5, clients=6, system=200, words=40, tokens=120),
)
SHORT = Size(
    count=2,
    hot_bytes=5 << 20,
    traffic=Load(sessions=6, turns=3, clients=6, system=200, words=40, tokens=8),
    disturbed=Load(sessions=6, turns=3, clients=6, system=200, words=40, tokens=120),
)


@dataclass(frozen=True, slots=True)
class Setup:
    """How replicas are joined: by the page's router, or by one that takes turns (`is_prefix`
    False); with a shared store, or with what each has in its memory."""

    is_prefix: bool
    is_shared: bool

    def __str__(self) -> str:
        routing = "prefix routing" if self.is_prefix else "taking turns"
        return f"{routing}, {'a shared store' if self.is_shared else 'no store'}"


THE_PAGE = Setup(is_prefix=True, is_shared=True)
OTHERS = (Setup(False, True), Setup(True, False), Setup(False, False))


@dataclass(slots=True)
class Outcome:
    """`shares`: the hits of each setup, as a share of those of one large server. `failures`: how
    many requests broke off when a replica was killed."""

    shares: dict[Setup, float] = field(default_factory=dict)
    failures: int = 0
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        share = self.shares.get(THE_PAGE, 0.0)
        return (
            f"{share:.3f} of the hits of one large server, {self.failures} requests broke off "
            f"when a replica was killed, {len(self.problems)} problems"
        )


def campaign(
    model: str,
    settings: list[str],
    directory: Path,
    size: Size = FULL,
    *,
    router: str = "sglang-router",
    others: tuple[Setup, ...] = OTHERS,
    seed: int = 1,
    say: Say = lambda _: None,
) -> Outcome:
    """Run it with a router that is installed. The setup of the page comes first, then `others`."""
    traffic, stopped, killed = (
        Sessions(load, seed + number)
        for number, load in enumerate((size.traffic, size.disturbed, size.disturbed))
    )
    outcome = Outcome()
    trial = _Trial(model, settings, directory, size, router, say, outcome)
    large = trial.large((traffic, stopped, killed))
    with trial.joined(THE_PAGE) as (fleet, before):
        trial.compare(THE_PAGE, fleet, before, traffic, large)
        trial.stop(fleet, before, stopped)
        trial.kill(fleet, before, killed, stopped)
    for setup in others:
        with trial.joined(setup) as (fleet, before):
            trial.compare(setup, fleet, before, traffic, large)
    return outcome


class _Trial:
    """The steps of a campaign, and what all of them need."""

    def __init__(
        self,
        model: str,
        settings: list[str],
        directory: Path,
        size: Size,
        router: str,
        say: Say,
        outcome: Outcome,
    ) -> None:
        self._model = model
        self._settings = (*settings, UNPROBED)
        self._directory = directory
        self._size = size
        self._router = router
        self._say = say
        self._outcome = outcome
        self._recipe: Recipe = read()

    # -- hits ----------------------------------------------------------------------------

    def large(self, asked: tuple[Sessions, ...]) -> Heard:
        """Ask one server with the memory of all replicas, each time from an empty cache. What it
        gave for the first sessions."""
        heard = []
        sets = self._in_memory(self._size.count * self._size.hot_bytes)
        with serving(self._model, self._directory / "large", *sets) as server:
            for sessions in asked:
                heard.append(self._ask(sessions, server.url))
                self._judge("one large server", heard[-1])
                server.http.post(
                    f"{server.url}/v1/cache/reset",
                    json={},
                    headers={"authorization": f"Bearer {self._recipe.key}"},
                ).raise_for_status()
        self._say(f"one large server: {heard[0]}")
        return heard[0]

    def compare(
        self, setup: Setup, fleet: Fleet, before: Router, sessions: Sessions, large: Heard
    ) -> None:
        """Ask a fleet what the large server was asked."""
        heard = self._ask(sessions, before.url)
        share = heard.cached / max(large.cached, 1)
        cold = sum(replica.cold_tokens for replica in fleet.replicas)
        self._outcome.shares[setup] = share
        self._say(f"{setup}: {heard}, {cold} from the store; {share:.3f} of the large server's")
        self._judge(str(setup), heard)
        if setup.is_shared and share < LEAST_SHARE:
            self._outcome.problems.append(f"{setup}: only {share:.3f} of the hits")
        if setup.is_shared and not setup.is_prefix and not cold:
            self._outcome.problems.append(f"{setup}: nothing came from the store")

    # -- an end --------------------------------------------------------------------------

    def stop(self, fleet: Fleet, before: Router, sessions: Sessions) -> None:
        """Stop a replica as a service manager does, under traffic. Nobody may notice."""
        with self._talk(sessions, before) as talk:
            victim = self._at_work(fleet, talk)
            victim.server.terminate()
            code = victim.server.wait()
        self._say(f"one stopped: {talk.heard}")
        self._judge("one stopped", talk.heard)
        if code:
            self._outcome.problems.append(f"the stopped server ended with {code}")
        self._revive(victim, fleet, before)

    def kill(self, fleet: Fleet, before: Router, sessions: Sessions, again: Sessions) -> None:
        """Kill a replica under traffic. What it had may break off, and nothing else. It comes back
        and takes part in what is asked `again`."""
        with self._talk(sessions, before) as talk:
            victim = self._at_work(fleet, talk)
            victim.server.kill()
            killed = time.monotonic()
        heard = talk.heard
        self._outcome.failures = len(heard.failed)
        self._say(f"one killed: {heard}")
        for asked in heard.failed[:_SHOWN]:
            self._say(f"  {asked.error}")
        living = (replica for replica in fleet.replicas if replica is not victim)
        elsewhere = set[str]().union(*(replica.ids for replica in living))
        self._outcome.problems += [
            f"{asked.error}, for another reason than the kill"
            for asked in heard.failed
            if asked.id in elsewhere or asked.sent > killed or not asked.streams
        ]
        heard.failed.clear()
        self._judge("one killed", heard)
        self._revive(victim, fleet, before)
        self._take_part(victim, before, again)

    def _take_part(self, victim: Replica, before: Router, sessions: Sessions) -> None:
        """Ask until a replica that came back answers something: whom the router asks is its own
        choice."""
        for _ in range(_PASSES):
            heard = self._ask(sessions, before.url)
            self._say(f"it is back: {heard}, {len(victim.ids)} of them answered by it")
            self._judge("it is back", heard)
            if victim.ids:
                return
        self._outcome.problems.append("the server that came back was asked nothing")

    def _at_work(self, fleet: Fleet, talk: Pass) -> Replica:
        """Whoever has most of the streams that will go on, once half of the traffic is over."""
        load = self._size.disturbed
        wait_for(lambda: talk.heard.answers >= load.sessions * load.turns // 2)

        def look() -> Replica | None:
            assert not talk.is_over, "nobody was at work"
            streams = talk.streaming()
            counts = {
                replica: len(replica.decoding(load.tokens // 3) & streams)
                for replica in fleet.replicas
            }
            found = max(fleet.replicas, key=counts.__getitem__)
            return found if counts[found] else None

        return wait_for(look)

    def _revive(self, victim: Replica, fleet: Fleet, before: Router) -> None:
        before.wait_for(fleet.urls - {victim.url})
        victim.server.kill()
        victim.start()
        victim.server.wait_ready()
        before.wait_for(fleet.urls)

    # -- what all need -------------------------------------------------------------------

    @contextmanager
    def joined(self, setup: Setup) -> Iterator[tuple[Fleet, Router]]:
        """A fleet and the router before it."""
        place = self._directory / str(setup).replace(", ", "-").replace(" ", "-")
        with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # a socket's path must be short
            redis = RedisServer(Path(folder), *self._recipe.redis) if setup.is_shared else None
            try:
                sets = self._in_memory(self._size.hot_bytes)
                if redis is not None:
                    sets = self._shared(redis.url)
                model = Model(self._model, sets)
                with (
                    Fleet(model, place, self._size.count) as fleet,
                    self._routed(setup, fleet, place) as before,
                ):
                    before.wait_for(fleet.urls)
                    yield fleet, before
            finally:
                if redis is not None:
                    redis.kill()

    def _routed(self, setup: Setup, fleet: Fleet, place: Path) -> Router:
        port = free_port()
        program = str(program_of(self._router))
        command = self._recipe.router_command(self._router, program, port, sorted(fleet.urls))
        if not setup.is_prefix:
            command[command.index("--policy") + 1] = "round_robin"
        return Router(command, port, place, self._recipe.key)

    def _in_memory(self, hot_bytes: int) -> tuple[str, ...]:
        own = (f"auth.api_keys={self._recipe.key}", "cache.hot_cache_only=true")
        return (*self._settings, *own, f"cache.hot_cache_max_bytes={hot_bytes}B")

    def _shared(self, url: str) -> tuple[str, ...]:
        hot = f"cache.hot_cache_max_bytes={self._size.hot_bytes}B"
        return (*self._settings, *self._recipe.server_settings(url), hot)

    def _ask(self, sessions: Sessions, url: str) -> Heard:
        with Pass(sessions, Endpoint(url, self._model, self._recipe.key)) as talk:
            pass
        return talk.heard

    def _talk(self, sessions: Sessions, before: Router) -> Pass:
        endpoint = Endpoint(before.url, self._model, self._recipe.key)
        return Pass(sessions, endpoint, streams=True)

    def _judge(self, name: str, heard: Heard) -> None:
        problems = [*heard.wrong, *heard.lost, *(asked.error for asked in heard.failed)]
        self._outcome.problems += [f"{name}: {problem}" for problem in problems]
