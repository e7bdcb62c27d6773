"""The rounds: each workload runs on every system before the next workload begins.

The order of the systems rotates from round to round, so that none is always the first.
"""

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TypeVar

from scripts.benchmarks import cache_quantities, quantities, tiny
from scripts.benchmarks.answer import Answer
from scripts.benchmarks.bare_system import BareSystem
from scripts.benchmarks.cache_session import CacheSession, Server
from scripts.benchmarks.cold_session import ColdSession
from scripts.benchmarks.http_system import RAM_ONLY, HttpSystem, start_ours
from scripts.benchmarks.metrics import SYSTEMS, Metric, Sample, collect
from scripts.benchmarks.peer_servers import Launch
from scripts.benchmarks.peers import Peer
from scripts.benchmarks.plan import Plan
from scripts.benchmarks.progress import Steps
from scripts.benchmarks.prompts import PromptMaker
from scripts.benchmarks.timeline import Run, total_rate
from scripts.benchmarks.workload import Late, System, Workload

_WARM_UP_OUT = 4
_CACHE_STEPS = 4
_COLD_STEPS = 3

S = TypeVar("S", bound=System)


@dataclass(frozen=True, slots=True)
class Lab:
    """The systems with one model, and prompts for it."""

    ours: HttpSystem
    bare: BareSystem
    peers: tuple[HttpSystem, ...]
    prompts: PromptMaker

    @property
    def systems(self) -> tuple[System, ...]:
        return (self.ours, self.bare, *self.peers)

    @property
    def servers(self) -> tuple[HttpSystem, ...]:
        return (self.ours, *self.peers)


class Bench:
    """Carries out a plan. `folder` takes logs and temporary files. The peers are installed."""

    def __init__(
        self, plan: Plan, model: Path, folder: Path, *, peers: Sequence[Peer], steps: Steps
    ) -> None:
        self._plan = plan
        self._model = model
        self._folder = folder
        self._peers = peers
        self._steps = steps

    def run(self) -> list[Metric]:
        """Start everything, measure, end everything. Raises ChildFailed."""
        rounds: list[list[Sample]] = [[] for _ in range(self._plan.repeats)]
        parts = {
            "throughput": self._throughput,
            "ttft": self._ttft,
            "gap": self._gap,
            "cache": self._cache,
        }
        chosen = [parts[name] for name in self._plan.only if name in parts]
        if chosen:
            self._rounds(self._model, self._folder, chosen, rounds)
        if "cold" in self._plan.only:
            self._cold(rounds)
        if "host" in self._plan.only:
            folder = self._folder / "one-layer"
            self._rounds(tiny.save(folder / "model"), folder, [self._host], rounds)
        return collect(rounds)

    def _rounds(
        self,
        model: Path,
        folder: Path,
        parts: "Sequence[Callable[[Lab, int], Iterator[Sample]]]",
        rounds: list[list[Sample]],
    ) -> None:
        with ExitStack() as stack:
            lab = self._start(model, folder, stack)
            for number, samples in enumerate(rounds):
                for part in parts:
                    samples += part(lab, number)
            if model == self._model:
                rounds[-1] += self._memory(lab)

    def _start(self, model: Path, folder: Path, stack: ExitStack) -> Lab:
        """Start the systems together, wait for each, and let each compile its kernels."""
        self._steps.begin(f"start and warm up with {model.name}")
        ours = start_ours(model, folder, RAM_ONLY)
        stack.callback(ours.child.end)
        bare = BareSystem(model, folder)
        stack.callback(bare.child.end)
        peers: list[HttpSystem] = []
        for peer in self._peers:
            if model == self._model or not peer.only_gguf:
                peers.append(peer.start(Launch(model, folder, self._plan.longest)))
                stack.callback(peers[-1].child.end)
        lab = Lab(ours, bare, tuple(peers), PromptMaker(model))
        for system in lab.systems:
            system.wait_until_ready()
        tokens = self._plan.prompt_tokens
        for count in (1, max(self._plan.streams)):
            prompts = lab.prompts.make(count, tokens, f"warm-up {count}")
            for system in lab.systems:
                system.run(Workload(prompts, _WARM_UP_OUT))
        self._steps.done("ready")
        return lab

    # -- the measurements: samples of one round ---------------------------------------------

    def _throughput(self, lab: Lab, number: int) -> Iterator[Sample]:
        plan, runs = self._plan, {}
        for count in plan.streams:
            title = f"throughput at {count}"
            prompts = lab.prompts.make(count, plan.prompt_tokens, f"{number} {title}")
            runs[count] = self._each(lab, number, title, Workload(prompts, plan.out_tokens))
        yield from quantities.throughput(runs)

    def _ttft(self, lab: Lab, number: int) -> Iterator[Sample]:
        tokens = self._plan.ttft_tokens
        prompts = lab.prompts.make(1, tokens, f"{number} ttft")
        runs = self._each(lab, number, f"first token of {tokens}", Workload(prompts, 1))
        yield from quantities.ttft(runs)

    def _gap(self, lab: Lab, number: int) -> Iterator[Sample]:
        plan = self._plan
        prompts = lab.prompts.make(plan.running_streams, plan.prompt_tokens, f"{number} running")
        (long,) = lab.prompts.make(1, plan.long_tokens, f"{number} long")
        workload = Workload(prompts, plan.running_out, Late(long))
        title = f"{plan.running_streams} streams while {plan.long_tokens} tokens are read"
        runs = self._each(lab, number, title, workload)
        seconds = lab.bare.chunk_seconds(long, plan.chunk_tokens)
        yield from quantities.gap(runs, median(seconds))

    def _cache(self, lab: Lab, number: int) -> Iterator[Sample]:
        plan = self._plan
        session = CacheSession(plan, lab.prompts, nonce=secrets.token_hex(4))
        title = f"{plan.repeat_tokens} tokens asked again"
        yield from cache_quantities.repeat(self._servers(lab, number, title, session.repeat))
        title = f"{plan.shared_tokens} of {plan.repeat_tokens} tokens known"
        asked = self._servers(lab, number, title, session.partial)
        yield from cache_quantities.partial(asked, session.known)
        title = f"{plan.turns} turns to {plan.turns_tokens} tokens"
        yield from cache_quantities.turns(self._servers(lab, number, title, session.turns))
        title = f"{plan.together} at once on {plan.prefix_tokens} tokens"
        yield from cache_quantities.together(self._servers(lab, number, title, session.together))

    def _cold(self, rounds: list[list[Sample]]) -> None:
        """With servers of its own, one after the other: nothing else runs beside them."""
        prompts = PromptMaker(self._model)
        for number, samples in enumerate(rounds):

            def begin(title: str, number: int = number) -> None:
                self._begin(number, title, "ours")
                self._steps.done("started")

            folder = self._folder / f"round-{number}"
            session = ColdSession(self._plan, self._model, folder, begin)
            samples += session.samples(prompts, secrets.token_hex(4))

    def _host(self, lab: Lab, number: int) -> Iterator[Sample]:
        plan = self._plan
        prompts = lab.prompts.make(plan.host_streams, plan.prompt_tokens, f"{number} host")
        runs = self._each(lab, number, "one-layer model", Workload(prompts, plan.host_out))
        yield from quantities.host(runs)

    def _each(self, lab: Lab, number: int, title: str, workload: Workload) -> dict[str, Run]:
        runs = {}
        for system in _rotated(lab.systems, number):
            self._begin(number, title, system.name)
            run = runs[system.name] = system.run(workload)
            self._steps.done(_in_words(run))
        return runs

    def _servers(
        self, lab: Lab, number: int, title: str, ask: Callable[[Server], list[Answer]]
    ) -> dict[str, list[Answer]]:
        """As `_each`, for what only a server can do."""
        asked = {}
        for server in _rotated(lab.servers, number):
            self._begin(number, title, server.name)
            answers = asked[server.name] = ask(server)
            self._steps.done(_told(answers))
        return asked

    def _begin(self, number: int, title: str, system: str) -> None:
        self._steps.begin(f"round {number + 1}/{self._plan.repeats}, {title}, {SYSTEMS[system]}")

    def _memory(self, lab: Lab) -> Iterator[Sample]:
        """Without the bare loop where it had nothing to do."""
        idle = set(self._plan.only) <= {"cache", "host"}
        systems: Sequence[System] = lab.servers if idle else lab.systems
        peaks = {system.name: system.child.peak_rss for system in systems}
        return quantities.memory(peaks, None if idle else lab.bare.peak_memory)


def count_steps(plan: Plan, peers: Sequence[Peer]) -> int:
    """How many steps `Bench.run` will tell of."""
    servers = 1 + len(peers)
    systems = servers + 1
    per_round = {
        "throughput": systems * len(plan.streams),
        "ttft": systems,
        "gap": systems,
        "cache": servers * _CACHE_STEPS,
        "cold": _COLD_STEPS,
        "host": systems - sum(peer.only_gguf for peer in peers),
    }
    models = ("host" in plan.only) + bool(set(plan.only) - {"cold", "host"})
    return models + plan.repeats * sum(per_round[name] for name in plan.only)


def _rotated(systems: tuple[S, ...], number: int) -> tuple[S, ...]:
    first = number % len(systems)
    return (*systems[first:], *systems[:first])


def _in_words(run: Run) -> str:
    last = max(stream.last for stream in run.streams)
    early = ", some answers ended early: not compared" if run.cut_short else ""
    return f"{run.tokens} tokens in {last:.2f} s, {total_rate(run):.1f} tok/s{early}"


def _told(answers: Sequence[Answer]) -> str:
    """When the first tokens came, and how much was computed for them."""
    first = ", ".join(f"{answer.stream.ttft:.2f}" for answer in answers)
    computed = " + ".join("?" if a.computed is None else str(a.computed) for a in answers)
    return f"first tokens after {first} s, {computed} tokens computed"
