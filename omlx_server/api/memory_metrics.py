"""The account of the memory as metrics. Pure."""

from collections.abc import Iterator, Sequence

from prometheus_client.core import Metric

from omlx_server.api.families import counter, counters, gauge, gauges, sums
from omlx_server.core.memory.guard import Rung
from omlx_server.core.memory.ledger import MemoryReport


def memory_families(reports: Sequence[MemoryReport]) -> Iterator[Metric]:
    """Of all engines together; nothing where no memory is watched."""
    if not reports:
        return
    lines = sums(line for report in reports for line in report.ledger.lines().items())
    yield gauges("omlx_memory_bytes", "Bytes by what they are for", ("kind",), lines)
    limit = sum(report.ledger.limit for report in reports)
    yield gauge("omlx_memory_limit_bytes", "Bytes that may be held", limit)
    drift = max((report.drift for report in reports), key=abs)
    yield gauge("omlx_memory_drift_ratio", "Held beyond the account, as a share of it", drift)
    rungs = sums(rung for report in reports for rung in report.rungs)
    yield counters(
        "omlx_memory_relief",
        "Sequences preempted or rejected, steps that needed room otherwise",
        ("rung",),
        rungs,
    )
    preempted = rungs.get((Rung.PREEMPT.value,), 0)
    yield counter("vllm:num_preemptions", "Sequences that went back to the queue", preempted)
