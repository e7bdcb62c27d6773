"""Make metric families for Prometheus."""

from collections.abc import Iterable, Mapping
from typing import TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

VLLM = "vllm:"
OWN = "omlx_"
"""Prefix of this server's own metrics; those that vLLM has as well begin with `VLLM`."""
MODEL = "model_name"
"""The label that holds a model's name, as vLLM calls it."""

_Labels = TypeVar("_Labels", bound=tuple[str, ...])


def label_of(model: str) -> str:
    """Return a model's name as a label, without bytes that are no text."""
    return model.encode(errors="replace").decode()


def gauges(
    name: str, text: str, labels: tuple[str, ...], values: Mapping[_Labels, float]
) -> Metric:
    return _labelled(GaugeMetricFamily(name, text, labels=labels), values)


def counters(
    name: str, text: str, labels: tuple[str, ...], values: Mapping[_Labels, float]
) -> Metric:
    """Return one counter for each set of labels, with the suffix `_total`."""
    return _labelled(CounterMetricFamily(name, text, labels=labels), values)


def sums(pairs: Iterable[tuple[str, int]]) -> dict[tuple[str, ...], int]:
    found: dict[tuple[str, ...], int] = {}
    for label, count in pairs:
        found[(label,)] = found.get((label,), 0) + count
    return found


def by_model(values: Mapping[str, float]) -> dict[tuple[str, ...], float]:
    return {(label_of(model),): value for model, value in values.items()}


def _labelled(
    family: GaugeMetricFamily | CounterMetricFamily, values: Mapping[_Labels, float]
) -> Metric:
    for labels, value in values.items():
        family.add_metric(list(labels), value)
    return family
