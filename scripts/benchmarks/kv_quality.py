"""What a quantised cache costs in quality, over texts that are read through the real caches.

Every variant and plain caches read a text side by side, chunk by chunk on the server's own grid,
and what they predict is compared token by token. So no more than the logits of two chunks are ever
held, and the reference is computed once. There are several texts because perplexity is a noisy
judge: over one of 2,800 tokens the ratio of two losses is known to about a sixth.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, expm1, fsum, sqrt
from pathlib import Path
from statistics import stdev
from typing import Any

import mlx.core as mx

from omlx_server.compute.caches import Caches
from omlx_server.compute.hardware import device_policy
from omlx_server.compute.model.loader import LoadedModel, load
from omlx_server.core.scheduler.limits import SchedulerLimits
from omlx_server.text.tokenizer import Tokenizer
from scripts.benchmarks.kv_variants import PLAIN, FreshCaches, Variant

TEXTS = Path(__file__).parent.parent.parent / "tests" / "data" / "prose"
"""An essay, a story, a manual and a talk; then frozen copies of documents of this project."""

# A softmax over a vocabulary makes copies of its rows; this many at a time.
_ROWS = 64


@dataclass(frozen=True, slots=True)
class Quality:
    """Of one variant over a text. `loss` is the perplexity over that of plain caches, minus 1, and
    `error` its standard error; `kl` is KL(plain || variant) per token in nats; `agreement` is the
    share of positions where both have the same most likely token."""

    perplexity: float
    loss: float
    error: float
    kl: float
    agreement: float


@dataclass(slots=True)
class _Sums:
    """Of the chunks so far: a number for each token."""

    surprises: list[float] = field(default_factory=list)
    divergences: list[float] = field(default_factory=list)
    agreements: int = 0

    def quality(self, plain: "_Sums") -> Quality:
        count = len(self.surprises)
        more = [own - was for own, was in zip(self.surprises, plain.surprises, strict=True)]
        loss = expm1(fsum(more) / count)
        return Quality(
            perplexity=exp(fsum(self.surprises) / count),
            loss=loss,
            error=(1 + loss) * stdev(more) / sqrt(count),
            kl=fsum(self.divergences) / count,
            agreement=self.agreements / count,
        )


def read_texts(model: Path, count: int) -> list[list[int]]:
    """The tokens of each text, `count` of them in all, or all where there are fewer."""
    tokenizer, found = Tokenizer.load(model), []
    for path in sorted(TEXTS.glob("*.txt")):
        tokens = tokenizer.encode(path.read_text(encoding="utf-8"))[:count]
        count -= len(tokens)
        found += [tokens] if tokens else []
    return found


def measure(
    model: Path, texts: Sequence[list[int]], variants: Sequence[Variant]
) -> dict[Variant, Quality]:
    """Teacher-forced: each position predicts the token after it. Plain caches are among them.

    The model is loaded for each text: no scheme is ever taken out of one.
    """
    sums = {variant: _Sums() for variant in (PLAIN, *variants)}
    for tokens in texts:
        _read(load(model), tokens, sums)
    return {variant: own.quality(sums[PLAIN]) for variant, own in sums.items()}


def _read(loaded: LoadedModel, tokens: list[int], sums: Mapping[Variant, _Sums]) -> None:
    fresh = FreshCaches(loaded, [variant for variant in sums if variant != PLAIN])
    caches = {variant: fresh.of(variant) for variant in sums}
    for start, stop in chunks(len(tokens) - 1):
        read, wanted = mx.array([tokens[start:stop]]), mx.array(tokens[start + 1 : stop + 1])
        plain = _log_probabilities(loaded, read, caches[PLAIN])
        for variant in sums:
            own = plain if variant == PLAIN else _log_probabilities(loaded, read, caches[variant])
            _add(sums[variant], plain, own, wanted)


def chunks(length: int) -> Iterator[tuple[int, int]]:
    """Tokens [start, stop) of each prefill chunk, as the server cuts a prompt by default."""
    limits = SchedulerLimits(
        prefill_chunk_tokens=device_policy.current().chunk,
        halve_chunks_at=device_policy.current().halved,
    )
    start = 0
    while start < length:
        stop = min(start + limits.grid_at(start), length)
        yield start, stop
        start = stop


def _log_probabilities(loaded: LoadedModel, tokens: mx.array, caches: Caches) -> list[mx.array]:
    """f32 [rows, V] for each few rows of a chunk [1, L]."""
    logits = loaded.model(tokens, cache=caches)[0]
    found = []
    for start in range(0, len(logits), _ROWS):
        rows = logits[start : start + _ROWS].astype(mx.float32)
        found.append(rows - mx.logsumexp(rows, axis=-1, keepdims=True))
        mx.eval(found[-1])
    return found


def _add(sums: _Sums, plain: list[mx.array], own: list[mx.array], wanted: mx.array) -> None:
    start = 0
    for expected, rows in zip(plain, own, strict=True):
        stop = start + len(rows)
        chosen = mx.take_along_axis(rows, wanted[start:stop, None], axis=-1)
        sums.surprises += _numbers(-chosen[:, 0])
        sums.divergences += _numbers((mx.exp(expected) * (expected - rows)).sum(axis=-1))
        same = mx.argmax(expected, axis=-1) == mx.argmax(rows, axis=-1)
        sums.agreements += sum(_numbers(same))
        start = stop


def _numbers(array: mx.array) -> list[Any]:
    numbers: Any = array.tolist()
    return list(numbers)
