"""The quantities of `scripts/bench kv`: how each follows from what was found, grouped as the tables
show them. The bounds are in `kv_bounds`."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scripts.benchmarks import kv_models
from scripts.benchmarks.kv_format import bytes_per_token
from scripts.benchmarks.kv_plan import KvPlan
from scripts.benchmarks.kv_variants import PLAIN, Variant
from scripts.benchmarks.metrics import Better, Metric, Sample, Spec, collect

# What was found, by the names of the variants.
Found = Mapping[str, Mapping[str, Any]]

PERPLEXITY = Spec("perplexity", "perplexity", "", Better.LOWER)
LOSS = Spec("loss", "more than plain", "%", Better.LOWER)
ERROR = Spec("loss_error", "± standard error", "%", Better.LOWER)
KL = Spec("kl", "KL from plain, per token", "nats", Better.LOWER)
AGREEMENT = Spec("agreement", "same top token", "%", Better.HIGHER)

CACHE = Spec("peak_cache", "the cache", "MB", Better.LOWER)
PREFILL = Spec("peak_prefill", "peak of the prefill", "MB", Better.LOWER)
PREFILL_OWN = Spec("peak_prefill_own", "prefill over the cache", "x", Better.LOWER)
PREFILL_PLAIN = Spec("peak_prefill_plain", "prefill over plain ones", "x", Better.LOWER)
REBUILD = Spec("peak_rebuild", "peak of the rebuild", "MB", Better.LOWER)
REBUILD_OWN = Spec("peak_rebuild_own", "rebuild over the cache", "x", Better.LOWER)
REBUILD_PLAIN = Spec("peak_rebuild_plain", "rebuild over plain ones", "x", Better.LOWER)

HELD = "tokens_{}"
OFF = "bytes_off_{}"


@dataclass(frozen=True, slots=True)
class Group:
    """Metrics that make a table, with the variants as rows. Where it is `relative`, plain caches
    show the value and the others its ratio to that."""

    name: str
    title: str
    metrics: tuple[Metric, ...]
    relative: bool = False


def quality(count: int, found: Found) -> Group:
    samples = []
    for name, values in found.items():
        samples.append(Sample(PERPLEXITY, name, values["perplexity"]))
        samples.append(Sample(LOSS, name, 100 * values["loss"]))
        samples.append(Sample(ERROR, name, 100 * values["error"]))
        samples.append(Sample(KL, name, values["kl"]))
        samples.append(Sample(AGREEMENT, name, 100 * values["agreement"]))
    return _group("quality", f"Quality over {count:,} tokens of text", [samples])


def held_bytes(variants: Sequence[Variant], found: Mapping[str, Found]) -> Group:
    """`found` by the type that the model computes in."""
    samples = []
    for dtype, by_variant in found.items():
        size = Spec(f"bytes_{dtype}", f"{dtype}: bytes per token", "", Better.LOWER)
        fewer = Spec(f"bytes_fewer_{dtype}", f"{dtype}: plain takes", "x", Better.HIGHER)
        off = Spec(OFF.format(dtype), f"{dtype}: off its format", "%", Better.LOWER)
        heads, dim, width = kv_models.HEADS, kv_models.HEAD_DIM, kv_models.WIDTHS[dtype]
        plain = bytes_per_token(PLAIN, heads, dim, width)
        for variant in variants:
            held = by_variant[variant.name]
            layers = [*held["prefilled"], *held["rebuilt"]]
            expected = bytes_per_token(variant, heads, dim, width)
            apart = max(abs(layer / expected - 1) for layer in layers)
            samples.append(Sample(size, variant.name, max(layers)))
            samples.append(Sample(fewer, variant.name, plain / max(layers)))
            samples.append(Sample(off, variant.name, 100 * apart if held["same_classes"] else 100))
    title = f"One layer of {kv_models.HEADS} heads of {kv_models.HEAD_DIM}"
    return _group("bytes", f"{title}, prefilled and rebuilt from bytes", [samples])


def tokens(plan: KvPlan, found: Mapping[str, Found]) -> Group:
    """`found` by the type that the model computes in."""
    samples = []
    for dtype, by_variant in found.items():
        held = Spec(HELD.format(dtype), f"{dtype}: tokens held", "", Better.HIGHER)
        more = Spec(f"tokens_more_{dtype}", f"{dtype}: times plain", "x", Better.HIGHER)
        used = Spec(f"tokens_bytes_{dtype}", f"{dtype}: in use", "MiB", Better.HIGHER)
        plain = by_variant[PLAIN.name]["tokens"]
        for name, filled in by_variant.items():
            samples.append(Sample(held, name, filled["tokens"]))
            samples.append(Sample(more, name, filled["tokens"] / plain))
            samples.append(Sample(used, name, filled["nbytes"] / (1 << 20)))
    return _group("tokens", f"A hot tier of {plan.hot_bytes >> 20} MiB, full", [samples])


def memory(plan: KvPlan, peaks: Mapping[Variant, Mapping[str, int]]) -> Group:
    """Peaks above weights, and above blocks where there are any."""
    heads, dim = kv_models.HEADS, kv_models.HEAD_DIM
    per_layer = bytes_per_token(PLAIN, heads, dim, kv_models.WIDTHS["float32"])
    plain = per_layer * plan.peak_layers * plan.peak_tokens
    samples = []
    for variant, found in peaks.items():
        cache, name = found["cache"], variant.name
        samples.append(Sample(CACHE, name, cache / 1e6))
        for peak, own, full, nbytes in (
            (PREFILL, PREFILL_OWN, PREFILL_PLAIN, found["prefill"]),
            (REBUILD, REBUILD_OWN, REBUILD_PLAIN, found["rebuild"]),
        ):
            samples.append(Sample(peak, name, nbytes / 1e6))
            samples.append(Sample(own, name, nbytes / cache))
            samples.append(Sample(full, name, nbytes / plain))
    title = f"Peak memory over {plan.peak_tokens:,} tokens of {plan.peak_layers} layers in float32"
    return _group("memory", f"{title}, plain keys and values: {plain / 1e6:,.0f} MB", [samples])


def decode(
    runs: Sequence[Mapping[str, int]], found: Sequence[Sequence[Mapping[str, float]]]
) -> Group:
    """`found` has for each run its rounds: tokens per second by variant."""
    specs = [
        _rate("decode", f"{run['context']:,} tokens", run["context"], run["streams"])
        for run in runs
    ]
    return _group("decode", "Decode behind so many tokens", _rates(specs, found), relative=True)


def prefill(
    runs: Sequence[Mapping[str, int]], found: Sequence[Sequence[Mapping[str, float]]]
) -> Group:
    """As `decode`."""
    specs = [
        _rate("prefill", f"{run['count']:,} tokens", run["count"], run["streams"]) for run in runs
    ]
    return _group("prefill", "Prefill of so many tokens", _rates(specs, found), relative=True)


def _rate(name: str, title: str, size: int, streams: int) -> Spec:
    many = "1 stream" if streams == 1 else f"{streams} streams"
    return Spec(f"{name}_{size}_{streams}", f"{title}, {many}", "tok/s", Better.HIGHER)


def _rates(
    specs: Sequence[Spec], found: Sequence[Sequence[Mapping[str, float]]]
) -> list[list[Sample]]:
    rounds = max(len(values) for values in found)
    return [
        [
            Sample(spec, name, rate)
            for spec, values in zip(specs, found, strict=True)
            for name, rate in values[number].items()
        ]
        for number in range(rounds)
    ]


def _group(
    name: str, title: str, rounds: Iterable[Sequence[Sample]], *, relative: bool = False
) -> Group:
    return Group(name, title, tuple(collect(list(rounds))), relative)
