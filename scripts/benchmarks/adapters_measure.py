"""Rows that decode together with an adapter each, beside the same rows without, by turns in one
process."""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import mlx.core as mx
import mlx.nn as nn

from omlx_server.compute.batch import LiveBatch
from omlx_server.compute.model.loader import LoadedModel
from omlx_server.compute.planning.probe import ForwardProbe
from omlx_server.compute.prefill import Prefilled
from omlx_server.core.adapters import CONFIG, WEIGHTS, Adapter
from omlx_server.core.work import finish
from omlx_server.models.adapters.files import read_adapter
from scripts.benchmarks.metrics import Better, Metric, Requirement, Sample, Spec, collect

ADAPTED, PLAIN = "adapters", "none"
_WARM_UP = 2


@dataclass(frozen=True, slots=True)
class AdaptersPlan:
    """Batches of so many `rows` of `length` tokens, each row with an adapter of its own, of `rank`,
    on every linear layer. Each round times `steps` decodes of every batch."""

    rows: tuple[int, ...] = (1, 4)
    length: int = 500
    rank: int = 8
    steps: int = 16
    repeats: int = 5


ADAPTERS_QUICK = AdaptersPlan(steps=8, repeats=2)


class AdaptersBench:
    """One model, to which it loads random adapters."""

    def __init__(self, loaded: LoadedModel, plan: AdaptersPlan) -> None:
        self._loaded = loaded
        self._plan = plan
        self._bench = ForwardProbe(loaded)

    def run(self) -> list[Metric]:
        with TemporaryDirectory() as directory:
            adapters = [self._adapter(Path(directory), n) for n in range(max(self._plan.rows))]
        rounds: list[list[Sample]] = [[] for _ in range(self._plan.repeats)]
        for rows in self._plan.rows:
            spec = Spec(f"step_{rows}", f"a step of {rows} rows", "ms", Better.LOWER)
            sides = {
                ADAPTED: self._batch(adapters[:rows]),
                PLAIN: self._batch([None] * rows),
            }
            for samples in rounds:
                for side, batch in sides.items():
                    samples.append(Sample(spec, side, 1000 * self._decode(batch)))
        return collect(rounds)

    def _adapter(self, directory: Path, number: int) -> Adapter:
        """Load a random adapter, which adds next to nothing."""
        path, rank = directory / f"a{number}", self._plan.rank
        path.mkdir()
        parameters = {"rank": rank, "scale": 1e-3}
        (path / CONFIG).write_text(json.dumps({"lora_parameters": parameters}))
        arrays = dict[str, mx.array]()
        for name, (inner, outer) in linear_layers(self._loaded.target).items():
            arrays[f"{name}.lora_a"] = mx.random.normal((inner, rank))
            arrays[f"{name}.lora_b"] = mx.random.normal((rank, outer))
        mx.save_safetensors(str(path / WEIGHTS), arrays)
        adapter = read_adapter(path, path.name)
        finish(self._loaded.adapters.loading(self._loaded.target, adapter))
        return adapter

    def _batch(self, adapters: Sequence[Adapter | None]) -> LiveBatch:
        loaded = self._loaded
        batch = LiveBatch(loaded.model, loaded.dims.vocab, adapters=loaded.adapters)
        made = self._bench.arrivals(0, len(adapters), self._plan.length)
        own = iter(adapters)
        batch.join(
            [
                Prefilled(
                    tuple(replace(join, adapter=next(own)) for join in arrival.joins),
                    arrival.caches,
                    arrival.solo,
                )
                for arrival in made
            ]
        )
        for _ in range(_WARM_UP):
            batch.decode()
        return batch

    def _decode(self, batch: LiveBatch) -> float:
        """Seconds of a step: the median."""
        times = []
        for _ in range(self._plan.steps):
            begun = time.perf_counter()
            batch.decode()
            times.append(time.perf_counter() - begun)
        return median(times)


def linear_layers(model: nn.Module) -> dict[str, tuple[int, int]]:
    """The widths of input and output of all linear layers of a model, by their paths."""
    found = {}
    for name, layer in model.named_modules():
        if isinstance(layer, nn.QuantizedLinear):
            found[name] = layer.scales.shape[1] * layer.group_size, layer.scales.shape[0]
        elif isinstance(layer, nn.Linear):
            found[name] = layer.weight.shape[1], layer.weight.shape[0]
    return found


def requirements(metrics: Sequence[Metric]) -> list[Requirement]:
    """A step with adapters, of the same step without."""
    return [
        Requirement(
            f"{metric.spec.title}, with adapters of that without",
            metric.ratio(ADAPTED, PLAIN),
            1.5,
            Better.LOWER,
        )
        for metric in metrics
    ]
