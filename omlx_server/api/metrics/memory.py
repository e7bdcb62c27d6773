"""The account of the memory as metrics. Pure."""

from collections.abc import Iterator

from prometheus_client.core import Metric

from omlx_server.api.families import counters, gauge, gauges, sums
from omlx_server.core.memory.ledger import MemoryReport


def memory_families(report: MemoryReport | None) -> Iterator[Metric]:
    """Of all models together; nothing where no memory is watched."""
    if report is None:
        return
    yield gauges(
        "omlx_memory_bytes",
        "Bytes that are held, by what they are for.",
        ("kind",),
        sums(report.ledger.lines().items()),
    )
    limit = "Bytes that the server may hold."
    yield gauge("omlx_memory_limit_bytes", limit, report.ledger.limit)
    resident = "Bytes of RAM that the process takes, as the system says."
    yield gauge("omlx_memory_resident_bytes", resident, report.resident)
    yield gauge(
        "omlx_memory_drift_ratio",
        "What MLX holds beyond the account, as a share of the account; negative for less.",
        report.drift,
    )
    yield counters(
        "omlx_memory_relief",
        "Times that room had to be made, by how: sequences that were preempted or rejected, else "
        "steps.",
        ("rung",),
        sums(report.rungs),
    )
