"""The process of one measurement of quantised caches: a job as JSON on the command line, its result
as one line of JSON. See `kv_measure`, which starts it."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

from omlx_server.compute.model.loader import load
from scripts.benchmarks import kv_bytes, kv_capacity, kv_memory, kv_models, kv_quality
from scripts.benchmarks.kv_speed import Rounds, Speed
from scripts.benchmarks.kv_variants import Variant

Json = dict[str, Any]

Runs = Sequence[Mapping[str, int]]


def main() -> None:
    job = json.loads(sys.argv[1])
    measure = _MEASURES[job.pop("measure")]
    variants = [Variant(scheme, bits) for scheme, bits in job.pop("variants")]
    print(json.dumps(measure(variants, **job)), flush=True)


def quality(variants: Sequence[Variant], model: str, tokens: int) -> Json:
    """How many tokens it was, and for each variant the fields of `Quality`."""
    texts = kv_quality.read_texts(Path(model), tokens)
    found = kv_quality.measure(Path(model), texts, variants)
    qualities = {variant.name: asdict(quality) for variant, quality in found.items()}
    return {"tokens": sum(map(len, texts)), "quality": qualities}


def held_bytes(variants: Sequence[Variant], layers: int, dtypes: Sequence[str]) -> Json:
    """By type and variant the fields of `Held`."""
    return {
        dtype: {v.name: asdict(h) for v, h in found.items()}
        for dtype in dtypes
        for found in [kv_bytes.measure(kv_models.make(layers, dtype), variants)]
    }


def tokens(variants: Sequence[Variant], layers: int, dtypes: Sequence[str], hot_bytes: int) -> Json:
    """By type and variant the fields of `Filled`."""
    return {
        dtype: {
            v.name: asdict(kv_capacity.fill(kv_models.make(layers, dtype), v, hot_bytes))
            for v in variants
        }
        for dtype in dtypes
    }


def memory(variants: Sequence[Variant], layers: int, dtype: str, count: int) -> Json:
    """For the one variant of this process the fields of `Peaks`."""
    (variant,) = variants
    return asdict(kv_memory.measure(kv_models.make(layers, dtype), variant, count))


def speed(variants: Sequence[Variant], model: str, decodes: Runs, prefills: Runs) -> Json:
    """Rounds of tokens per second for each run; its fields are the arguments of `Speed`'s method
    of that name."""
    text = list(chain(*kv_quality.read_texts(Path(model), sys.maxsize)))
    measured = Speed(load(Path(model)), text, variants)
    return {
        "decodes": [_named(measured.decode(**run)) for run in decodes],
        "prefills": [_named(measured.prefill(**run)) for run in prefills],
    }


def _named(rounds: Rounds) -> list[dict[str, float]]:
    return [{variant.name: rate for variant, rate in values.items()} for values in rounds]


_MEASURES: Mapping[str, Callable[..., Json]] = {
    "quality": quality,
    "bytes": held_bytes,
    "tokens": tokens,
    "memory": memory,
    "speed": speed,
}


if __name__ == "__main__":
    main()
