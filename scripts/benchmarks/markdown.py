"""What matters most to somebody who has to choose, as a Markdown table: ours against each peer."""

from collections.abc import Iterable, Iterator, Sequence

from scripts.benchmarks.cache_quantities import REPEAT_COLD, REPEAT_WARM, TOGETHER_WALL
from scripts.benchmarks.metrics import SYSTEMS, Better, Metric, find
from scripts.benchmarks.peer_pins import LLAMA_CPP
from scripts.benchmarks.plan import Plan
from scripts.benchmarks.quantities import GAP_LONGEST, PEAK_RSS, TOTAL
from scripts.benchmarks.report import Report
from scripts.benchmarks.table import NOTHING, number


def ratios(report: Report) -> str:
    """Rows are quantities, columns are peers; below it, what it was measured with."""
    peers = [name for name in report.baselines if name != "bare"]
    header = ["", "ours", *(f"against {_with_version(name, report)}" for name in peers)]
    rows = [
        [title, number(metric.median("ours")), *(_cell(metric, peer) for peer in peers)]
        for name, title in _titles(report.plan)
        if (metric := find(report.metrics, name)) is not None
    ]
    return "\n".join([*pipes(header, rows), "", _legend(report), ""])


def pipes(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table. All columns but the first are numbers."""
    aligned = ["---", *("---:" for _ in header[1:])]
    return [f"| {' | '.join(cells)} |" for cells in (header, aligned, *rows)]


def _titles(plan: Plan) -> Iterator[tuple[str, str]]:
    """Names of metrics, in the order of the table, with what they are called there."""
    sizes = f"{plan.prompt_tokens} tokens in, {plan.out_tokens} out"
    for n in plan.streams:
        streams = "1 stream" if n == 1 else f"{n} streams"
        yield TOTAL.format(n), f"output of {streams}, {sizes} each, tok/s"
    yield REPEAT_COLD, f"first token of a new prompt of {plan.repeat_tokens:,} tokens, ms"
    yield REPEAT_WARM, "first token of the same prompt again, ms"
    streams = f"{plan.running_streams} streams"
    yield GAP_LONGEST, f"longest wait of {streams} while {plan.long_tokens:,} tokens are read, ms"
    agents = f"{plan.together} agents at once on one prefix of {plan.prefix_tokens:,} tokens"
    yield TOGETHER_WALL, f"{agents}, until all have their answer, s"
    yield PEAK_RSS, "peak memory, MB"


def _cell(metric: Metric, peer: str) -> str:
    """Return how many times as good ours is, in bold where it is better, and the peer's figure."""
    more_is_better = metric.spec.better is Better.HIGHER
    ratio = metric.ratio("ours", peer) if more_is_better else metric.ratio(peer, "ours")
    if ratio is None:
        return NOTHING
    bold = "**" if ratio > 1 else ""
    return f"{bold}{ratio:.2f} ×{bold} ({number(metric.median(peer))})"


def _legend(report: Report) -> str:
    machine, rounds = report.machine, report.plan.repeats
    figures = f"the median of {rounds} rounds" if rounds > 1 else "from one round"
    system = str(machine["platform"]).partition("-")[0]
    sentences = [
        f"2 × means that ours is twice as fast, or takes half the memory, {figures}; in brackets "
        f"is the peer's own figure, {NOTHING} stands for what it can't do or does not tell.",
        f"{report.model}, greedy, all on one machine in one run on {report.created:%Y-%m-%d}: "
        f"{machine['device']}, {machine['cores']} cores, {system} on {machine['processor']}, "
        f"Python {machine['python']}, omlx_server {machine['omlx_server']}, mlx {machine['mlx']}.",
    ]
    if "llama_cpp" in report.baselines:
        sentences.append(
            f"llama.cpp is the source in {LLAMA_CPP.title}, compiled on this machine, and has the "
            "same weights in 4 bits."
        )
    return " ".join(sentences)


def _with_version(name: str, report: Report) -> str:
    return f"{SYSTEMS[name]} {report.machine.get(name, '')}".strip()
