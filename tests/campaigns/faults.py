"""One fault of the cold directory after the other under live load: `scripts/campaign faults`.

The hot tier is so small that blocks go through the cold tier all the time, and the cold tier too
small for all of them, so that blocks are written, read and evicted for ever. Whatever happens to
its directory, clients see right answers and nothing else; and the counters tell what happened.
"""

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.api.harness import ServerProcess, serving
from tests.api.stories import metrics
from tests.campaigns.damage import FAULTS, Fault, Place, small_disk, without_override
from tests.campaigns.traffic import Conversation, Tally, Traffic, converse

_LOOK_SECONDS = 0.05
_PATIENCE_SECONDS = 120.0
_GROWTH = 1 << 30
_TELLING = ("omlx_cache_dropped_total{", "omlx_cache_read_failures_total{")
_WRITTEN = "omlx_cache_written_blocks_total"
_HIT = 'omlx_cache_hit_tokens_total{tier="cold"}'


@dataclass(frozen=True, slots=True)
class Load:
    """What clients ask, and the sizes in bytes that keep a cold tier busy with it."""

    conversations: int
    turns: int
    words: int
    tokens: int
    clients: int
    hot: int
    cold: int
    disk: int


TINY = Load(8, 3, 12, 8, 4, hot=1 << 19, cold=3 << 19, disk=8 << 20)
STARTER = Load(8, 4, 30, 8, 3, hot=48 << 20, cold=96 << 20, disk=256 << 20)


@dataclass(frozen=True, slots=True)
class Phase:
    """What one fault did, until all worked again: tokens `hit` in the cold tier, blocks `written`,
    `told` by which counters, `grown` by how many resident bytes at most."""

    fault: str
    seen: Tally
    hit: int
    written: int
    told: Mapping[str, int]
    grown: int
    is_told: bool
    works_again: bool

    @property
    def is_right(self) -> bool:
        sane = self.grown < _GROWTH
        clean = not self.seen.wrong and not self.seen.errors
        return clean and sane and self.is_told and self.works_again

    def __str__(self) -> str:
        counters = ", ".join(f"{_short(name)} {count}" for name, count in self.told.items())
        return (
            f"{self.fault:20} {self.seen} {self.hit:7} hit cold {self.written:5} written "
            f"{self.grown >> 20:+5} MiB  {counters}"
            + ("" if self.is_told else "  NOT TOLD")
            + ("" if self.works_again else "  NOT WORKING AGAIN")
        )


@dataclass(slots=True)
class Outcome:
    """What a campaign gave. `skipped` faults come with the reason; `restarted` is what a new server
    in the same directory said, of which it `found` so many tokens there."""

    phases: list[Phase] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    restarted: Tally = field(default_factory=Tally)
    found: int = 0

    @property
    def is_right(self) -> bool:
        again = self.restarted
        well = [phase.is_right for phase in self.phases]
        return all(well) and not again.wrong and not again.errors and self.found > 0


class _Watched:
    """A server that is looked at all the time."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server
        self.peak = 0

    def counters(self) -> dict[str, float]:
        self.peak = max(self.peak, self._server.memory)
        return metrics(self._server)

    def wait(self, condition: Callable[[dict[str, float]], bool], seconds: float) -> bool:
        """Look for so long at least, and until the counters are so. False if they never are."""
        begun = time.monotonic()
        while not (met := condition(self.counters())) or time.monotonic() < begun + seconds:
            if time.monotonic() > begun + seconds + _PATIENCE_SECONDS:
                return False
            time.sleep(_LOOK_SECONDS)
        return met

    def works_again(self) -> bool:
        """Whether, from now on, blocks are written and hit."""
        before = self.counters()
        return self.wait(lambda now: len(list(_rose(now, before, (_WRITTEN, _HIT)))) == 2, 0)


def campaign(
    model: str,
    settings: Sequence[str],
    directory: Path,
    load: Load,
    *,
    seconds: float,
    faults: Sequence[Fault] = FAULTS,
    say: Callable[[str], None] = lambda line: None,
    seed: int = 1,
) -> Outcome:
    """Run it; each fault lasts for at least `seconds`. `say` gets a line for each."""
    rng = random.Random(seed)
    right = _right_answers(model, settings, directory / "oracle", load, rng)
    with small_disk(directory / "disk", load.disk) as disk:
        kv = directory / "disk" / "kv"
        settings = [
            *settings,
            f"cache.cold_dir={kv}",
            f"cache.hot_cache_max_bytes={load.hot}B",
            f"cache.cold_cache_max_bytes={load.cold}B",
            "logging.level=warning",
        ]
        outcome = Outcome()
        server = without_override(lambda: ServerProcess(model, directory / "served", settings))
        try:
            server.wait_ready()
            place = Place(kv, server.pid, disk, random.Random(seed))
            with Traffic(server, right, clients=load.clients, tokens=load.tokens) as traffic:
                _run_all(faults, place, _Watched(server), traffic, seconds, outcome, say)
            server.stop()
        finally:
            server.kill()
        _restart(model, settings, directory / "again", right, load.tokens, outcome)
    say(f"{'after a restart':20} {outcome.restarted} {outcome.found:7} hit cold")
    return outcome


def _right_answers(
    model: str, settings: Sequence[str], directory: Path, load: Load, rng: random.Random
) -> list[Conversation]:
    oracle = ServerProcess(model, directory, [*settings, "cache.enabled=false"])
    try:
        oracle.wait_ready()
        return [
            converse(oracle, rng, turns=load.turns, words=load.words, tokens=load.tokens)
            for _ in range(load.conversations)
        ]
    finally:
        oracle.kill()


def _run_all(
    faults: Sequence[Fault],
    place: Place,
    watched: _Watched,
    traffic: Traffic,
    seconds: float,
    outcome: Outcome,
    say: Callable[[str], None],
) -> None:
    assert watched.works_again(), "blocks do not go through the cold tier"
    for fault in faults:
        why_not = fault.why_not(place)
        if why_not:
            outcome.skipped.append(f"{fault.name}: {why_not}")
            say(f"{fault.name}: skipped, {why_not}")
        else:
            outcome.phases.append(_suffer(fault, place, watched, traffic, seconds))
            say(str(outcome.phases[-1]))
            if not outcome.phases[-1].works_again:
                return  # what came now would tell nothing


def _suffer(
    fault: Fault, place: Place, watched: _Watched, traffic: Traffic, seconds: float
) -> Phase:
    """One fault, until it shows; and what comes when it is healed."""
    watched.peak = 0
    before, seen = watched.counters(), traffic.tally()
    memory = watched.peak
    with fault.lasting(place):
        is_told = watched.wait(lambda now: any(_rose(now, before, fault.counters)), seconds)
    works_again = watched.works_again()
    after = watched.counters()
    return Phase(
        fault=fault.name,
        seen=traffic.tally() - seen,
        hit=int(after[_HIT] - before[_HIT]),
        written=int(after[_WRITTEN] - before[_WRITTEN]),
        told=dict(_rose(after, before, [name for name in after if name.startswith(_TELLING)])),
        grown=watched.peak - memory,
        is_told=is_told,
        works_again=works_again,
    )


def _rose(
    now: Mapping[str, float], before: Mapping[str, float], names: Sequence[str]
) -> Iterator[tuple[str, int]]:
    """Which of the counters went up, and by how much."""
    for name in names:
        difference = now.get(name, 0) - before.get(name, 0)
        if difference:
            yield name, int(difference)


def _restart(
    model: str,
    settings: Sequence[str],
    directory: Path,
    conversations: Sequence[Conversation],
    tokens: int,
    outcome: Outcome,
) -> None:
    """The last turn of all conversations, of a server that has nothing but the files."""
    with serving(model, directory, *settings) as server:
        traffic = Traffic(server, conversations, clients=0, tokens=tokens)
        for conversation in conversations:
            traffic.ask(server.http, conversation[-1], streams=False)
        outcome.restarted, outcome.found = traffic.tally(), int(metrics(server)[_HIT])


def _short(counter: str) -> str:
    """dropped full, for omlx_cache_dropped_total{reason="full"}."""
    name, _, label = counter.removeprefix("omlx_cache_").partition("_total{")
    return f"{name.replace('_', ' ')} {label.split(chr(34))[1]}"
