"""Rows that decode together: on our caches, where each has its own length, and on those of mlx-lm,
whose batch is padded to the longest.

Both are measured by turns in one process: each round takes every batch of both, moments apart,
beginning with the other one each time.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import TypeVar

import mlx.core as mx

from omlx_server.compute.bare import mlx_lm_caches
from omlx_server.compute.batch import LiveBatch
from omlx_server.compute.model.loader import LoadedModel
from omlx_server.compute.planning.probe import ForwardProbe, measured
from omlx_server.compute.prefilled import Prefilled
from omlx_server.compute.quantise import use_rows_of_own_length
from scripts.benchmarks.metrics import Better, Metric, Requirement, Sample, Spec, collect, find
from scripts.benchmarks.progress import Steps
from scripts.benchmarks.rows_plan import RowsPlan

T = TypeVar("T")

OURS, PADDED = "ours", "padded"

_WARM_UP = 2
_MEGABYTE = 1e6


@dataclass(frozen=True, slots=True)
class Shape:
    """A batch: how many rows of which length."""

    name: str
    title: str
    rows: tuple[tuple[int, int], ...]

    def step(self) -> Spec:
        return Spec(f"step_{self.name}", f"a step of {self.title}", "ms", Better.LOWER)

    def held(self) -> Spec:
        return Spec(f"held_{self.name}", f"keys and values of {self.title}", "MB", Better.LOWER)


MIXED, LONG, SHORT, EMPTY, EQUAL = "mixed", "long", "short", "empty", "equal"
JOIN_TIME = Spec("join_time", "a short row joins them", "ms", Better.LOWER)
JOIN_PEAK = Spec("join_peak", "memory for that, beyond what is held", "MB", Better.LOWER)
LEAVE_TIME = Spec("leave_time", "a short row leaves them", "ms", Better.LOWER)
LEAVE_PEAK = Spec("leave_peak", "memory for that, beyond what is held", "MB", Better.LOWER)


def shapes(plan: RowsPlan) -> tuple[Shape, ...]:
    long, short = (1, plan.long), (plan.beside, plan.short)
    mixed = f"a row of {plan.long:,} beside {plan.beside} of {plan.short:,}"
    return (
        Shape(MIXED, mixed, (long, short)),
        Shape(LONG, f"a row of {plan.long:,}", (long,)),
        Shape(SHORT, f"{plan.beside} rows of {plan.short:,}", (short,)),
        Shape(EMPTY, "a row of 1", ((1, 1),)),
        Shape(EQUAL, f"{plan.equal} rows of {plan.short:,}", ((plan.equal, plan.short),)),
    )


class RowsBench:
    """One model, with a bench for each kind of caches."""

    def __init__(self, loaded: LoadedModel, plan: RowsPlan) -> None:
        self._loaded = loaded
        self._plan = plan
        use_rows_of_own_length(loaded.model)
        self._benches = {}
        for kind in (OURS, PADDED):
            with self._use(kind):
                self._benches[kind] = ForwardProbe(loaded)

    def run(self, steps: Steps) -> list[Metric]:
        rounds: list[list[Sample]] = [[] for _ in range(self._plan.repeats)]
        for shape in shapes(self._plan):
            steps.begin(shape.title)
            self._measure(shape, rounds)
            steps.done("done")
        return collect(rounds)

    def _measure(self, shape: Shape, rounds: Sequence[list[Sample]]) -> None:
        made = {kind: self._made(kind, shape) for kind in (OURS, PADDED)}
        for kind, (_, held) in made.items():
            rounds[0].append(Sample(shape.held(), kind, held / _MEGABYTE))
        batches = {kind: batch for kind, (batch, _) in made.items()}
        for batch in batches.values():
            self._decode(batch, _WARM_UP)
        runs = {kind: partial(self._decode, b, self._plan.steps) for kind, b in batches.items()}
        for kind, seconds, samples in _by_turns(runs, rounds):
            samples.append(Sample(shape.step(), kind, 1000 * seconds))
        if shape.name == MIXED:
            moves = {kind: partial(self._moves, kind, b) for kind, b in batches.items()}
            for kind, found, samples in _by_turns(moves, rounds):
                samples += [Sample(spec, kind, value) for spec, value in found.items()]

    def _made(self, kind: str, shape: Shape) -> tuple[LiveBatch, int]:
        """A batch of this shape that has decoded, and the bytes that it holds."""
        before, first, arrivals = at_rest(), 0, list[Prefilled]()
        with self._use(kind):
            batch = LiveBatch(self._loaded.model, self._loaded.dims.vocab)
            for count, length in shape.rows:
                arrivals += self._benches[kind].arrivals(first, first + count, length)
                first += count
        batch.join(arrivals)
        del arrivals
        self._decode(batch, 1)
        return batch, at_rest() - before

    def _moves(self, kind: str, batch: LiveBatch) -> dict[Spec, float]:
        """A row comes and goes, without a decode between: what that takes, until it is done."""
        with self._use(kind):
            arrivals = self._benches[kind].arrivals(90, 91, self._plan.short)
        joined = _moved(lambda: batch.join(arrivals))
        left = _moved(lambda: batch.drop(batch.ids[-1:]))
        return dict(zip((JOIN_TIME, JOIN_PEAK, LEAVE_TIME, LEAVE_PEAK), joined + left, strict=True))

    def _decode(self, batch: LiveBatch, steps: int) -> float:
        """Seconds of a step: the median."""
        times = []
        for _ in range(steps):
            begun = time.perf_counter()
            batch.decode().to_host()
            times.append(time.perf_counter() - begun)
        return median(times)

    def _use(self, kind: str) -> AbstractContextManager[None]:
        """Within the block, the model makes caches of this kind."""
        return mlx_lm_caches(self._loaded.model) if kind == PADDED else nullcontext()


def requirements(metrics: Sequence[Metric], plan: RowsPlan) -> list[Requirement]:
    """What rows of their own length have to keep."""
    own = {shape.name: shape for shape in shapes(plan)}
    held = [_median(metrics, own[name].held()) for name in (MIXED, LONG, SHORT)]
    ratios = [find(metrics, own[name].step().name) for name in (LONG, EQUAL)]
    return [
        Requirement(
            "bytes of mixed rows, of the sum of their own", _over(held), 1.15, Better.LOWER
        ),
        Requirement(
            "step of mixed rows, of the sum of their own less one of weights",
            _of_the_sum(metrics, own),
            1.15,
            Better.LOWER,
        ),
        *(
            Requirement(
                f"step of padded rows over ours, {own[name].title}",
                metric.ratio(PADDED, OURS) if metric else None,
                0.97,
                Better.HIGHER,
            )
            for name, metric in zip((LONG, EQUAL), ratios, strict=True)
        ),
    ]


def _of_the_sum(metrics: Sequence[Metric], own: Mapping[str, Shape]) -> float | None:
    """The median over rounds, in each of which all were measured."""
    found = [find(metrics, own[name].step().name) for name in (MIXED, LONG, SHORT, EMPTY)]
    rounds = zip(*(metric.rounds for metric in found if metric), strict=True)
    parts = [[values[OURS] for values in each] for each in rounds]
    sums = [mixed / (long + short - weights) for mixed, long, short, weights in parts]
    return median(sums) if sums else None


def _over(values: Sequence[float | None]) -> float | None:
    whole, *parts = (value or 0.0 for value in values)
    return whole / sum(parts) if whole and all(parts) else None


def _median(metrics: Sequence[Metric], spec: Spec) -> float | None:
    metric = find(metrics, spec.name)
    return metric.median(OURS) if metric else None


def at_rest() -> int:
    """The bytes that are held when nothing runs."""
    mx.synchronize()
    mx.clear_cache()
    return mx.get_active_memory()


def _moved(run: Callable[[], object]) -> tuple[float, float]:
    """Milliseconds, and megabytes at the worst moment beyond what is held before and after."""
    seconds = list[float]()

    def timed() -> None:
        begun = time.perf_counter()
        run()
        mx.synchronize()
        seconds.append(time.perf_counter() - begun)

    peak = measured(timed)
    return 1000 * seconds[0], peak.transient / _MEGABYTE


def _by_turns(
    runs: Mapping[str, Callable[[], T]], rounds: Sequence[list[Sample]]
) -> Iterator[tuple[str, T, list[Sample]]]:
    """Who ran, what it found, and the samples of that round."""
    for number, samples in enumerate(rounds):
        names = list(runs)
        for name in (*names[number % 2 :], *names[: number % 2]):
            yield name, runs[name](), samples
