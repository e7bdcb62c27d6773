"""The quantities of the benchmark: how each follows from runs, and what is required of ours."""

from collections.abc import Iterator, Mapping, Sequence

from omlx_server.cli.bench.target import decode_rate
from scripts.benchmarks import cache_quantities, cold_session
from scripts.benchmarks.metrics import Better, Metric, Requirement, Sample, Spec, find
from scripts.benchmarks.plan import Plan
from scripts.benchmarks.timeline import (
    Run,
    gaps,
    median_ttft,
    percentile,
    total_rate,
)

Runs = Mapping[str, Run]

TOTAL = "total_{}"
DECODE = "decode_{}"
TTFT = "ttft_{}"
GAP = "gap_{}"
GAP_LONGEST = GAP.format("max")
PEAK_RSS = "peak_rss"

_TTFT = Spec("ttft", "time to first token, alone", "ms", Better.LOWER)
_CHUNK = Spec("chunk", "one prefill chunk", "ms", Better.LOWER)
_GAP_CHUNKS = Spec("gap_chunks", "longest gap in chunk times", "chunks", Better.LOWER)
_GAIN = Spec("decode_gain", "decode gain of many streams", "x", Better.HIGHER)
_HOST_WALL = Spec("host_wall", "one-layer model, per token", "µs", Better.LOWER)
_HOST_CPU = Spec("host_cpu", "one-layer model, CPU per token", "µs", Better.LOWER)
_ADDED_WALL = Spec("added_wall", "  over the bare loop", "µs", Better.LOWER)
_ADDED_CPU = Spec("added_cpu", "  over the bare loop, CPU", "µs", Better.LOWER)
_RSS = Spec(PEAK_RSS, "peak resident memory", "MB", Better.LOWER)
_MLX_PEAK = Spec("peak_mlx", "peak of MLX's allocator", "MB", Better.LOWER)


def throughput(runs: Mapping[int, Runs]) -> Iterator[Sample]:
    """Rates by number of streams, what batching gains in decode, how long the first token takes."""
    few, most = min(runs), max(runs)
    decode = {n: _decode_rates(_whole(runs[n])) for n in (few, most)}
    for n, by_system in runs.items():
        spec = Spec(TOTAL.format(n), f"output, {_streams(n)}", "tok/s", Better.HIGHER)
        for system, run in _whole(by_system).items():
            yield Sample(spec, system, total_rate(run))
    for n, rates in decode.items():
        spec = Spec(DECODE.format(n), f"decode alone, {_streams(n)}", "tok/s", Better.HIGHER)
        for system, rate in rates.items():
            yield Sample(spec, system, rate)
    if few < most:
        for system in decode[few].keys() & decode[most].keys():
            yield Sample(_GAIN, system, decode[most][system] / decode[few][system])
    spec = Spec(TTFT.format(most), f"median first token, {_streams(most)}", "ms", Better.LOWER)
    for system, run in runs[most].items():
        yield Sample(spec, system, 1e3 * median_ttft(run))


def ttft(runs: Runs) -> Iterator[Sample]:
    for system, run in runs.items():
        yield Sample(_TTFT, system, 1e3 * median_ttft(run))


def gap(runs: Runs, chunk_seconds: float) -> Iterator[Sample]:
    """How long running streams wait for a token while a long prompt is read."""
    for system, run in _whole(runs).items():
        waits = gaps(run)
        if not waits:
            continue  # all answers had ended before the long prompt came
        for percent, name in ((50, "p50"), (99, "p99"), (100, "max")):
            spec = Spec(GAP.format(name), f"gap while reading, {name}", "ms", Better.LOWER)
            yield Sample(spec, system, 1e3 * percentile(waits, percent))
        yield Sample(_GAP_CHUNKS, system, max(waits) / chunk_seconds)
    yield Sample(_CHUNK, "ours", 1e3 * chunk_seconds)


def host(runs: Runs) -> Iterator[Sample]:
    """What a token costs around the model: a one-layer model, minus the bare loop of the same.

    Over whole runs: a request's own cost is a cost too, and its many tokens share it.
    """
    whole = _whole(runs)
    wall = {system: 1e6 / total_rate(run) for system, run in whole.items()}
    cpu = {system: 1e6 * run.cpu_seconds / run.tokens for system, run in whole.items()}
    for spec, added, values in ((_HOST_WALL, _ADDED_WALL, wall), (_HOST_CPU, _ADDED_CPU, cpu)):
        for system, value in values.items():
            yield Sample(spec, system, value)
        for system in values.keys() - {"bare"} if "bare" in values else ():
            yield Sample(added, system, values[system] - values["bare"])


def memory(peak_rss: Mapping[str, int], mlx_peak: int | None) -> Iterator[Sample]:
    """Bytes over the whole run; the processes are watched while they work."""
    for system, peak in peak_rss.items():
        yield Sample(_RSS, system, peak / 1e6)
    if mlx_peak is not None:
        yield Sample(_MLX_PEAK, "bare", mlx_peak / 1e6)


def requirements(metrics: Sequence[Metric], plan: Plan) -> list[Requirement]:
    """The bounds of issue 2, for the largest number of streams, and those of the cache."""
    streams = max(plan.streams)
    total = find(metrics, TOTAL.format(streams))
    gain = find(metrics, _GAIN.name)
    waits = find(metrics, _GAP_CHUNKS.name)
    return [
        Requirement(
            f"output at {_streams(streams)}, prefill included, against the bare loop",
            total.ratio("ours", "bare") if total else None,
            0.95,
            Better.HIGHER,
        ),
        Requirement(
            f"decode at {_streams(streams)} against one stream",
            gain.median("ours") if gain else None,
            5.0,
            Better.HIGHER,
        ),
        Requirement(
            "longest gap while a long prompt is read, in chunk times",
            waits.median("ours") if waits else None,
            2.0,
            Better.LOWER,
        ),
        *cache_quantities.requirements(metrics, plan),
        *cold_session.requirements(metrics),
    ]


def _whole(runs: Runs) -> dict[str, Run]:
    """Those of which every answer was as long as it was to be."""
    return {system: run for system, run in runs.items() if not run.cut_short}


def _decode_rates(runs: Runs) -> dict[str, float]:
    rates = {system: decode_rate(run.streams) for system, run in runs.items()}
    return {system: rate for system, rate in rates.items() if rate is not None}


def _streams(count: int) -> str:
    return "1 stream" if count == 1 else f"{count} streams"
