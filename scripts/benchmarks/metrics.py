"""Samples of many rounds, their medians and ratios. Pure.

The speed of a machine drifts over minutes. So a ratio is taken within each round, where its two
sides were measured moments apart, and the median of these ratios is what is quoted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median

# The systems, by name, with what the table calls them.
SYSTEMS: Mapping[str, str] = {
    "ours": "omlx_server",
    "bare": "bare batch loop",
    "mlx_lm": "mlx_lm.server",
    "vllm_mlx": "vllm-mlx",
    "llama_cpp": "llama.cpp Q4_1",
}


class Better(StrEnum):
    HIGHER = "higher"
    LOWER = "lower"


@dataclass(frozen=True, slots=True)
class Spec:
    """What a metric is. `name` is its key in the JSON file."""

    name: str
    title: str
    unit: str
    better: Better


@dataclass(frozen=True, slots=True)
class Sample:
    """One number that one system gave in one round."""

    spec: Spec
    system: str
    value: float


@dataclass(frozen=True, slots=True)
class Metric:
    """All samples of one quantity: for each round, the value of each system."""

    spec: Spec
    rounds: tuple[Mapping[str, float], ...]

    def median(self, system: str) -> float | None:
        values = [values[system] for values in self.rounds if system in values]
        return median(values) if values else None

    def ratio(self, of: str, to: str) -> float | None:
        """The median over the rounds of `of` divided by `to`."""
        both = [values for values in self.rounds if of in values and values.get(to)]
        return median(values[of] / values[to] for values in both) if both else None


@dataclass(frozen=True, slots=True)
class Requirement:
    """A bound that our server has to keep. `value` is None when it was not measured."""

    title: str
    value: float | None
    bound: float
    better: Better

    @property
    def met(self) -> bool | None:
        if self.value is None:
            return None
        if self.better is Better.HIGHER:
            return self.value >= self.bound
        return self.value <= self.bound


def collect(rounds: Sequence[Sequence[Sample]]) -> list[Metric]:
    """Samples by round become metrics, in the order in which they first appear."""
    specs = {sample.spec.name: sample.spec for samples in rounds for sample in samples}
    return [
        Metric(spec, tuple(_of(spec, samples) for samples in rounds)) for spec in specs.values()
    ]


def _of(spec: Spec, samples: Sequence[Sample]) -> dict[str, float]:
    return {sample.system: sample.value for sample in samples if sample.spec.name == spec.name}


def find(metrics: Sequence[Metric], name: str) -> Metric | None:
    return next((metric for metric in metrics if metric.spec.name == name), None)
