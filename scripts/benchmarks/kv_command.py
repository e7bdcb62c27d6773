"""The command `scripts/bench kv`: schemes of kv_cache beside plain caches."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from sys import maxsize
from typing import Annotated

import typer

from omlx_server.compute.model.loader import load
from scripts.benchmarks import comparison, kv_quality
from scripts.benchmarks.command_line import (
    MODEL,
    OUT,
    Model,
    Only,
    Out,
    Repeats,
    chosen_parts,
    find,
)
from scripts.benchmarks.kv_quality import Quality
from scripts.benchmarks.kv_speed import Rounds, Speed
from scripts.benchmarks.kv_variants import FOUR_BITS, PLAIN, Variant
from scripts.benchmarks.metrics import Better, Metric, Requirement, Sample, Spec, collect
from scripts.benchmarks.metrics import find as find_metric
from scripts.benchmarks.progress import Steps, open_steps

PARTS = ("quality", "speed")
_ALL = ",".join(PARTS)
_AFFINE, *_BETTER = FOUR_BITS

LOSS = Spec("loss", "more perplexity than plain", "%", Better.LOWER)
KL = Spec("kl", "KL from plain, per token", "nats", Better.LOWER)
_EVERY = (
    *(Variant(scheme, bits) for scheme in ("affine", "rotated") for bits in (2, 3, 4, 6, 8)),
    *(Variant("turboquant", bits) for bits in (2, 2.5, 3, 3.5, 4, 8)),
)
# A shorter text gives no verdict on quality.
_JUDGED_TOKENS = 10_000


@dataclass(frozen=True, slots=True)
class KvPlan:
    """Sizes of a run in tokens. Quality is that of `variants` over the first `text_tokens` of the
    texts. Speed is that of `compared` ones: `decode_steps` steps behind each of `contexts` in
    batches of each of `streams`, and prefills of one and of several prompts."""

    repeats: int = 5
    only: tuple[str, ...] = PARTS
    variants: tuple[Variant, ...] = _EVERY
    compared: tuple[Variant, ...] = FOUR_BITS
    text_tokens: int = 1 << 20
    contexts: tuple[int, ...] = (200, 4000)
    streams: tuple[int, ...] = (1, 4)
    decode_steps: int = 16
    prefill_tokens: int = 2000
    grouped_tokens: int = 200


KV_QUICK = KvPlan(
    repeats=1,
    variants=FOUR_BITS,
    text_tokens=300,
    contexts=(200,),
    decode_steps=4,
    prefill_tokens=300,
    grouped_tokens=64,
)


def kv(
    quick: Annotated[bool, typer.Option("--quick", help="A minute: one round, few sizes.")] = False,
    only: Only = _ALL,
    repeats: Repeats = 0,
    model: Model = MODEL,
    out: Out = OUT,
) -> None:
    """Measure the schemes of kv_cache beside plain caches: what they cost.

    \b
    quality  a fixed text, read through the caches: perplexity, KL, agreement with plain ones
    speed    decode behind short and long contexts, prefill; ratios to plain caches

    \b
    Examples:
      scripts/bench kv --quick
      scripts/bench kv --only quality

    \b
    Writes kv-quality.json, kv-speed.json and both as .md into bench-out/ (or --out DIR).
    """
    plan = replace(KV_QUICK if quick else KvPlan(), only=chosen_parts(only, PARTS))
    plan = replace(plan, repeats=repeats) if repeats else plan
    path = find(model).path
    out.mkdir(parents=True, exist_ok=True)
    with open_steps(len(plan.only)) as steps:
        metrics = {part: measure(part, plan, path, steps) for part in plan.only}
    for part, measured in metrics.items():
        variants = plan.variants if part == "quality" else plan.compared
        comparison.publish(
            f"kv-{part}",
            out,
            model=path.name,
            plan=plan,
            sides=(*(variant.name for variant in variants), PLAIN.name),
            metrics=measured,
            requirements=requirements(measured, plan) if part == "quality" else [],
        )


def measure(part: str, plan: KvPlan, model: Path, steps: Steps) -> list[Metric]:
    steps.begin(part)
    if part == "quality":
        texts = kv_quality.read_texts(model, plan.text_tokens)
        metrics = quality(kv_quality.measure(model, texts, plan.variants))
    else:
        metrics = _speed(plan, model)
    steps.done("done")
    return metrics


def quality(qualities: Mapping[Variant, Quality]) -> list[Metric]:
    return collect([[s for v, q in qualities.items() for s in _samples(v.name, q)]])


def _samples(name: str, quality: Quality) -> Iterator[Sample]:
    yield Sample(Spec("perplexity", "perplexity", "", Better.LOWER), name, quality.perplexity)
    yield Sample(LOSS, name, 100 * quality.loss)
    error = Spec("loss_error", "± standard error", "%", Better.LOWER)
    yield Sample(error, name, 100 * quality.error)
    yield Sample(KL, name, quality.kl)
    agreement = Spec("agreement", "same top token", "%", Better.HIGHER)
    yield Sample(agreement, name, 100 * quality.agreement)


def _speed(plan: KvPlan, model: Path) -> list[Metric]:
    text = list(chain(*kv_quality.read_texts(model, maxsize)))
    speed = Speed(load(model), text, (PLAIN, *plan.compared))
    metrics = list[Metric]()
    for context in plan.contexts:
        for streams in plan.streams:
            rounds = speed.decode(context, streams, plan.decode_steps, plan.repeats)
            metrics += _rates(f"decode behind {context:,} tokens, {streams} at once", rounds)
    for count, streams in ((plan.prefill_tokens, 1), (plan.grouped_tokens, max(plan.streams))):
        rounds = speed.prefill(count, streams, plan.repeats)
        metrics += _rates(f"prefill of {count:,} tokens, {streams} at once", rounds)
    return metrics


def _rates(title: str, rounds: Rounds) -> list[Metric]:
    spec = Spec(title.replace(",", "").replace(" ", "_"), title, "tok/s", Better.HIGHER)
    return collect([[Sample(spec, v.name, rate) for v, rate in one.items()] for one in rounds])


def requirements(metrics: Sequence[Metric], plan: KvPlan) -> list[Requirement]:
    """The bounds on quality; a run over too short a text has no value."""
    required = []
    for variant in _BETTER:
        for spec in (LOSS, KL):
            metric = find_metric(metrics, spec.name)
            judged = metric is not None and plan.text_tokens >= _JUDGED_TOKENS
            value = metric.ratio(variant.name, _AFFINE.name) if metric and judged else None
            title = f"{variant.name}: {spec.title}, over that of {_AFFINE.name}"
            required.append(Requirement(title, value, 1 / 3, Better.LOWER))
    return required
