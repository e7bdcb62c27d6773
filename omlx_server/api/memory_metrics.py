"""The account of the memory as metrics. Pure."""

from collections.abc import Iterator

from prometheus_client.core import Metric

from omlx_server.api.families import counter, counters, gauge, gauges, sums
from omlx_server.core.memory.guard import Rung
from omlx_server.core.memory.ledger import MemoryReport


def memory_families(report: MemoryReport | None, shared: str) -> Iterator[Metric]:
    """Of all models together; nothing where no memory is watched."""
    if report is None:
        return
    lines = sums(report.ledger.lines().items())
    yield gauges("omlx_memory_bytes", "Bytes by what they are for", ("kind",), lines)
    limit = report.ledger.limit
    yield gauge("omlx_memory_limit_bytes", "Bytes that may be held", limit)
    drift = report.drift
    yield gauge("omlx_memory_drift_ratio", "Held beyond the account, as a share of it", drift)
    rungs = sums(report.rungs)
    yield counters(
        "omlx_memory_relief",
        "Sequences preempted or rejected, steps that needed room otherwise",
        ("rung",),
        rungs,
    )
    preempted = rungs.get((Rung.PREEMPT.value,), 0)
    yield counter(f"{shared}num_preemptions", "Sequences that went back to the queue", preempted)
