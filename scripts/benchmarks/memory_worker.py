"""The process of one model of `scripts/bench memory`: a job as JSON on the command line, its result
as one line of JSON."""

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import mlx.core as mx

from omlx_server.compute import caches as cache_ops
from omlx_server.compute.architectures.pair import Pair
from omlx_server.compute.model.loader import LoadedModel, load
from omlx_server.compute.model.pairing import paired
from omlx_server.compute.planning.plan_file import planner_for
from omlx_server.compute.planning.probe import ForwardProbe, Peak
from omlx_server.compute.quantise import use_scheme
from omlx_server.core.memory.estimate import STRUCTURAL, Coefficients, Planner, PrefillFactors
from omlx_server.core.memory.kv import (
    GROWTH,
    Decode,
    Keeps,
    LayerKv,
    PrefillShape,
    attended_tokens,
    cache_bytes,
    layer_bytes,
)
from scripts.benchmarks import memory_models
from scripts.benchmarks.kv_variants import Variant
from scripts.benchmarks.memory_plan import (
    STARTER,
    Behind,
    Forward,
    Join,
    Leave,
    Mixed,
    Shared,
    parsed,
    plain,
)
from scripts.benchmarks.stored_prefix import StoredPrefix

Json = dict[str, Any]

# Each term as often as the arithmetic of a forward has it alive, for a model that nobody has seen.
_INNER = (1.0, 2.0, 1.0)
_GUESSED = Coefficients(
    alone=PrefillFactors(_INNER[:2], (*_INNER, 1.0, 1.0)),
    together=PrefillFactors(_INNER[:2], (*_INNER, 1.0, 1.0)),
    layers=_INNER,
    head=(1.0, *_INNER),
    copies=(1.0, 1.0),
)


def main() -> None:
    job = json.loads(sys.argv[1])
    loaded = _load(job["model"], job["dtype"], job["path"], Variant(*job["variant"]))
    began = time.perf_counter()
    planner = planner_for(loaded)
    seconds = time.perf_counter() - began
    planners = {
        "estimate": planner,
        "guess": Planner(planner.model, _GUESSED),
        "bound": Planner(planner.model, STRUCTURAL),
    }
    bench = ForwardProbe(loaded)
    rows = [
        _measured(bench, planners, parsed(fields), loaded.weight_bytes)
        for fields in job["forwards"]
        if _can_be_measured(bench, planner, parsed(fields))
    ]
    answer = {
        "weights": loaded.weight_bytes,
        "probe_seconds": seconds,
        "coefficients": asdict(planner.coefficients),
        "rows": rows,
    }
    print(json.dumps(answer), flush=True)


def _can_be_measured(bench: ForwardProbe, planner: Planner, forward: Forward) -> bool:
    """Not several rows of a model that has one, nor stored tokens of a model with rings: a filled
    ring does not have those of all its blocks."""
    has_rings = any(layer.keeps is Keeps.RING for layer in planner.model.layers)
    stores = isinstance(forward, Shared | Behind)
    return (bench.batchable or forward.rows == 1) and not (has_rings and stores)


def _load(name: str, dtype: str, path: str | None, variant: Variant) -> LoadedModel:
    scheme = variant.make()
    if name == STARTER:
        assert path is not None
        return load(Path(path), scheme=scheme)
    target, _, drafter = name.partition("+")
    loaded = memory_models.make(target, dtype)
    if drafter:
        return paired(loaded, memory_models.make(drafter, dtype))
    if scheme is not None:
        use_scheme(loaded.model, scheme)
    return loaded


def _held(planner: Planner, forward: Forward) -> int:
    """Bytes of the caches, by arithmetic."""
    layers = planner.model.layers
    if isinstance(forward, PrefillShape):
        tokens = forward.context + forward.tokens
        return cache_bytes(layers, forward.rows, tokens, forward.tokens)
    if isinstance(forward, Mixed):
        return planner.live([forward.context + 1, *([forward.short + 1] * (forward.rows - 1))])
    if isinstance(forward, Shared):
        return cache_bytes(layers, 1, forward.context) + cache_bytes(
            layers, forward.rows, forward.own + 1
        )
    if isinstance(forward, Behind):
        return cache_bytes(layers, 1, forward.context) + cache_bytes(layers, 1, forward.tokens)
    rows = forward.rows + (forward.leaving if isinstance(forward, Leave) else 0)
    if rows == 1 or planner.model.tiles:
        return cache_bytes(layers, rows, forward.context + 1)
    # A batch of plain caches is made to fit, and then grows.
    return rows * sum(layer.count * _in_batch(layer, forward.context) for layer in layers)


def _in_batch(layer: LayerKv, tokens: int) -> int:
    if layer.keeps in (Keeps.GROWING, Keeps.PADDED):
        return layer.nbytes * (tokens + GROWTH)
    return layer_bytes(layer, tokens)


def _measured(
    bench: ForwardProbe, planners: Mapping[str, Planner], forward: Forward, weights: int
) -> Json:
    """Bytes: what was estimated and measured, and the same of everything that is held in arrays."""
    peak = _peak(bench, forward)
    estimates = {name: _estimated(planner, forward) for name, planner in planners.items()}
    return {
        "forward": plain(forward),
        "measured": peak.transient,
        "whole": peak.peak,
        "whole_estimate": weights + _held(planners["estimate"], forward) + estimates["estimate"],
        **estimates,
    }


def _estimated(planner: Planner, forward: Forward) -> int:
    if isinstance(forward, PrefillShape):
        return planner.prefill(forward)
    if isinstance(forward, Behind):
        return planner.prefill(PrefillShape(1, forward.tokens, forward.context, refers=True))
    if isinstance(forward, Decode):
        return planner.decode(forward)
    lengths = _lengths(forward)
    if lengths:
        seen = attended_tokens(planner.model.layers, lengths)
        refers, uneven = isinstance(forward, Shared), len(set(lengths)) > 1
        return planner.decode(Decode(len(lengths), seen, refers=refers, uneven=uneven))
    return planner.decode(Decode(forward.rows, forward.context, grows=True))


def _lengths(forward: Forward) -> list[int]:
    """The tokens of rows that differ, or share some."""
    match forward:
        case Mixed():
            return [forward.context, *([forward.short] * (forward.rows - 1))]
        case Shared():
            return [forward.context + forward.own] * forward.rows
    return []


def _peak(bench: ForwardProbe, forward: Forward) -> Peak:
    if isinstance(forward, PrefillShape):
        return bench.prefill(forward)
    if isinstance(forward, Decode):
        return bench.decode(forward) if forward.tokens == 1 else _verify(bench, forward)
    match forward:
        case Mixed():
            return _mixed(bench, forward)
        case Shared():
            return _shared(bench, forward)
        case Behind():
            return _behind(bench, forward)
    return _come(bench, forward) if isinstance(forward, Join) else _go(bench, forward)


def _come(bench: ForwardProbe, join: Join) -> Peak:
    batch = bench.batch(join.rows - join.arriving, join.context)
    arrivals = bench.arrivals(join.rows - join.arriving, join.rows, join.context)

    def run() -> None:
        batch.join(arrivals)
        batch.decode()

    return bench.measure(run)


def _verify(bench: ForwardProbe, decode: Decode) -> Peak:
    """Of drafts that are wrong, which have to be taken back; or of those of a draft model."""
    batch = bench.batch(decode.rows, decode.context)
    batch.decode()
    drafted = decode.tokens - 1
    if isinstance(bench.model, Pair):
        asks = dict.fromkeys(batch.ids, drafted)
        return bench.measure(lambda: batch.decode(asks=asks))
    drafts = dict.fromkeys(batch.ids, (1,) * drafted)
    return bench.measure(lambda: batch.decode(drafts))


def _mixed(bench: ForwardProbe, mixed: Mixed) -> Peak:
    batch = bench.batch(1, mixed.context)
    batch.join(bench.arrivals(1, mixed.rows, mixed.short))
    batch.decode()
    return bench.measure(batch.decode)


def _shared(bench: ForwardProbe, shared: Shared) -> Peak:
    prefix, batch = StoredPrefix(bench.model, shared.context), bench.batch(0, 0)
    prefix.rest()
    batch.join([prefix.row(number, shared.own) for number in range(shared.rows)])
    batch.decode()
    return bench.measure(batch.decode)


def _behind(bench: ForwardProbe, behind: Behind) -> Peak:
    prefix = StoredPrefix(bench.model, behind.context)
    prefix.rest()
    caches = prefix.hit()

    def run() -> None:
        bench.model(mx.zeros((1, behind.tokens), dtype=mx.int32), cache=caches)
        cache_ops.evaluate(caches, wait=True)

    return bench.measure(run)


def _go(bench: ForwardProbe, leave: Leave) -> Peak:
    """The worse of both: what is given back by the first is no room for the second."""
    batch = bench.batch(leave.rows + leave.leaving, leave.context)
    dropped = bench.measure(lambda: batch.drop(batch.ids[leave.rows :]))
    decoded = bench.measure(batch.decode)
    return max(dropped, decoded, key=lambda peak: peak.transient)


if __name__ == "__main__":
    main()
