"""What is required of quantised caches (issue 5)."""

from collections.abc import Iterator, Sequence

from scripts.benchmarks import kv_quantities as kv
from scripts.benchmarks.kv_plan import KvPlan
from scripts.benchmarks.kv_quantities import Group
from scripts.benchmarks.kv_variants import FOUR_BITS, PLAIN, Variant
from scripts.benchmarks.metrics import Better, Metric, Requirement, find

_AFFINE, *_BETTER = FOUR_BITS

# Of what plain keys and values take. A copy of them would be at least 1.
_NO_COPY = 0.5
_OFF_PERCENT = 5.0


def requirements(groups: Sequence[Group], plan: KvPlan) -> list[Requirement]:
    """What was not measured, or not at the size that a bound supposes, has no value."""
    metrics = [metric for group in groups for metric in group.metrics]
    return [*_quality(metrics, plan), *_tokens(metrics), *_memory(metrics, plan), *_bytes(metrics)]


def _quality(metrics: Sequence[Metric], plan: KvPlan) -> Iterator[Requirement]:
    for variant in _BETTER:
        for spec, what in ((kv.LOSS, "loss of perplexity"), (kv.KL, "KL")):
            value = _over(metrics, spec.name, variant, _AFFINE) if plan.judges_quality else None
            title = f"{variant.name}: {what} over that of {_AFFINE.name}"
            yield Requirement(title, value, 1 / 3, Better.LOWER)


def _tokens(metrics: Sequence[Metric]) -> Iterator[Requirement]:
    for dtype, bound in (("bfloat16", 3.4), ("float32", 6.0)):
        name = kv.HELD.format(dtype)
        ratios = [_over(metrics, name, variant, PLAIN) for variant in FOUR_BITS]
        title = f"4 bits, the least of the schemes: tokens held over plain {dtype}"
        yield Requirement(title, _worst(ratios, Better.HIGHER), bound, Better.HIGHER)


def _memory(metrics: Sequence[Metric], plan: KvPlan) -> Iterator[Requirement]:
    for spec, what in ((kv.PREFILL_PLAIN, "prefill"), (kv.REBUILD_PLAIN, "rebuild")):
        peaks = [_value(metrics, spec.name, v) if plan.judges_memory else None for v in FOUR_BITS]
        title = f"4 bits, the most of the schemes: peak of a {what} over plain keys and values"
        yield Requirement(title, _worst(peaks, Better.LOWER), _NO_COPY, Better.LOWER)
        own = _value(metrics, spec.name, PLAIN) if plan.judges_memory else None
        title = f"so that the meter is seen to work: the same of a {what} with plain ones"
        yield Requirement(title, own, 1.0, Better.HIGHER)


def _bytes(metrics: Sequence[Metric]) -> Iterator[Requirement]:
    found = [find(metrics, kv.OFF.format(dtype)) for dtype in ("float32", "bfloat16")]
    values = [value for metric in found if metric for r in metric.rounds for value in r.values()]
    title = "bytes per token of any layer off its format's arithmetic, percent"
    yield Requirement(title, max(values, default=None), _OFF_PERCENT, Better.LOWER)


def _value(metrics: Sequence[Metric], name: str, variant: Variant) -> float | None:
    metric = find(metrics, name)
    return metric.median(variant.name) if metric else None


def _over(metrics: Sequence[Metric], name: str, of: Variant, to: Variant) -> float | None:
    metric = find(metrics, name)
    return metric.ratio(of.name, to.name) if metric else None


def _worst(values: Sequence[float | None], better: Better) -> float | None:
    """None unless all were measured."""
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    return min(known) if better is Better.HIGHER else max(known)
