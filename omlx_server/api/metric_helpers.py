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
    return _add_values(GaugeMetricFamily(name, text, labels=labels), values)


def counters(
    name: str, text: str, labels: tuple[str, ...], values: Mapping[_Labels, float]
) -> Metric:
    """Return one counter for each set of labels, with the suffix `_total`."""
    return _add_values(CounterMetricFamily(name, text, labels=labels), values)


def sums(pairs: Iterable[tuple[str, int]]) -> dict[tuple[str, ...], int]:
    """Return the sum of the counts of each label."""
    counts: dict[tuple[str, ...], int] = {}
    for label, count in pairs:
        counts[(label,)] = counts.get((label,), 0) + count
    return counts


def model_gauges(name: str, text: str, values: Mapping[str, float]) -> Metric:
    return gauges(name, text, (MODEL,), {(label_of(model),): n for model, n in values.items()})


def model_counters(name: str, text: str, values: Mapping[str, float]) -> Metric:
    return counters(name, text, (MODEL,), {(label_of(model),): n for model, n in values.items()})


def _add_values(
    family: GaugeMetricFamily | CounterMetricFamily, values: Mapping[_Labels, float]
) -> Metric:
    for labels, value in values.items():
        family.add_metric(list(labels), value)
    return family
