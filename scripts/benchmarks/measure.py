"""The rounds: each workload runs on every system before the next workload begins.

The order of the systems rotates from round to round, so that none is always the first.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from scripts.benchmarks import quantities, tiny
from scripts.benchmarks.bare_system import BareSystem
from scripts.benchmarks.http_system import start_mlx_lm, start_ours
from scripts.benchmarks.metrics import SYSTEMS, Metric, Sample, collect
from scripts.benchmarks.plan import Plan
from scripts.benchmarks.progress import Steps
from scripts.benchmarks.prompts import PromptMaker
from scripts.benchmarks.timeline import Run, total_rate
from scripts.benchmarks.workload import Late, System, Workload

_WARM_UP_OUT = 4


@dataclass(frozen=True, slots=True)
class Lab:
    """The systems with one model, and prompts for it."""

    ours: System
    bare: BareSystem
    peers: tuple[System, ...]
    prompts: PromptMaker

    @property
    def systems(self) -> tuple[System, ...]:
        return (self.ours, self.bare, *self.peers)


class Bench:
    """Carries out a plan. `folder` takes logs and temporary files."""

    def __init__(
        self, plan: Plan, model: Path, folder: Path, *, with_peers: bool, steps: Steps
    ) -> None:
        self._plan = plan
        self._model = model
        self._folder = folder
        self._with_peers = with_peers
        self._steps = steps

    def run(self) -> list[Metric]:
        """Start everything, measure, end everything. Raises ChildFailed."""
        rounds: list[list[Sample]] = [[] for _ in range(self._plan.repeats)]
        parts = {"throughput": self._throughput, "ttft": self._ttft, "gap": self._gap}
        chosen = [parts[name] for name in self._plan.only if name in parts]
        if chosen:
            self._rounds(self._model, self._folder, chosen, rounds)
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
                peaks = {system.name: system.child.peak_rss for system in lab.systems}
                rounds[-1] += quantities.memory(peaks, lab.bare.peak_memory)

    def _start(self, model: Path, folder: Path, stack: ExitStack) -> Lab:
        """Start the systems together, wait for each, and let each compile its kernels."""
        self._steps.begin(f"start and warm up with {model.name}")
        ours = start_ours(model, folder)
        stack.callback(ours.child.end)
        bare = BareSystem(model, folder)
        stack.callback(bare.child.end)
        peers: list[System] = []
        if self._with_peers:
            peers.append(start_mlx_lm(model, folder))
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

    def _host(self, lab: Lab, number: int) -> Iterator[Sample]:
        plan = self._plan
        prompts = lab.prompts.make(plan.host_streams, plan.prompt_tokens, f"{number} host")
        runs = self._each(lab, number, "one-layer model", Workload(prompts, plan.host_out))
        yield from quantities.host(runs)

    def _each(self, lab: Lab, number: int, title: str, workload: Workload) -> dict[str, Run]:
        first = number % len(lab.systems)
        runs = {}
        for system in (*lab.systems[first:], *lab.systems[:first]):
            name = SYSTEMS[system.name]
            self._steps.begin(f"round {number + 1}/{self._plan.repeats}, {title}, {name}")
            run = runs[system.name] = system.run(workload)
            self._steps.done(_in_words(run))
        return runs


def count_steps(plan: Plan, *, with_peers: bool) -> int:
    """How many steps `Bench.run` will tell of."""
    per_round = {"throughput": len(plan.streams), "ttft": 1, "gap": 1, "host": 1}
    systems = 3 if with_peers else 2
    models = ("host" in plan.only) + bool(set(plan.only) - {"host"})
    return models + plan.repeats * systems * sum(per_round[name] for name in plan.only)


def _in_words(run: Run) -> str:
    last = max(stream.last for stream in run.streams)
    return f"{run.tokens} tokens in {last:.2f} s, {total_rate(run):.1f} tok/s"
