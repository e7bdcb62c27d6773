"""Metric families of Prometheus with the values of one moment."""

from collections.abc import Iterable, Mapping
from typing import TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

VLLM = "vllm:"
OWN = "omlx_"
"""What names begin with that vLLM has for the same; all others are `OWN`."""
MODEL = "model_name"
"""vLLM's label for the model that is served."""

_Labels = TypeVar("_Labels", bound=tuple[str, ...])


def label_of(model: str) -> str:
    """A model's name as a label. One of a directory may hold bytes that are no text."""
    return model.encode(errors="replace").decode()


def gauge(name: str, text: str, value: float) -> Metric:
    """What goes up and down."""
    return GaugeMetricFamily(name, text, value=value)


def counter(name: str, text: str, value: float) -> Metric:
    """What only goes up; `_total` is put behind its name."""
    return CounterMetricFamily(name, text, value=value)


def gauges(
    name: str, text: str, labels: tuple[str, ...], values: Mapping[_Labels, float]
) -> Metric:
    """One gauge for each set of labels."""
    return _labelled(GaugeMetricFamily(name, text, labels=labels), values)


def counters(
    name: str, text: str, labels: tuple[str, ...], values: Mapping[_Labels, float]
) -> Metric:
    """One counter for each set of labels."""
    return _labelled(CounterMetricFamily(name, text, labels=labels), values)


def sums(pairs: Iterable[tuple[str, int]]) -> dict[tuple[str, ...], int]:
    """Counts of all engines by their label."""
    found: dict[tuple[str, ...], int] = {}
    for label, count in pairs:
        found[(label,)] = found.get((label,), 0) + count
    return found


def by_model(values: Mapping[str, float]) -> dict[tuple[str, ...], float]:
    """Values by the label of their model."""
    return {(label_of(model),): value for model, value in values.items()}


def _labelled(
    family: GaugeMetricFamily | CounterMetricFamily, values: Mapping[_Labels, float]
) -> Metric:
    for labels, value in values.items():
        family.add_metric(list(labels), value)
    return family
