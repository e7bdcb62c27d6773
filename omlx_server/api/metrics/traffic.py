"""Open connections and bodies in transit, with their metrics."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from omlx_server.api.connections.connections import Connections
from omlx_server.api.http.bodies import Bodies
from omlx_server.api.metric_helpers import OWN, counters, sums


@dataclass(frozen=True, slots=True, eq=False)
class Traffic(Collector):
    """Connections and bodies. `imports` are archives, one at a time."""

    connections: Connections = field(default_factory=Connections)
    bodies: Bodies = field(default_factory=Bodies)
    imports: Bodies = field(default_factory=lambda: Bodies(0))  # no bytes to share: one at a time

    @property
    def body_bytes(self) -> int:
        return self.bodies.held + self.imports.held + self.connections.unread

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            OWN + "connections", "Connections that are open.", value=len(self.connections)
        )
        yield counters(
            OWN + "connections_ended",
            "Connections that had to go because descriptors were short, by the reason: the oldest "
            "idle one of its client; a new one that was refused; one with a request while too many "
            "of its client were busy.",
            ("reason",),
            sums(self.connections.ended.items()),
        )
        yield counters(
            OWN + "bodies_refused",
            "Bodies of requests that were refused, by the reason: slow ones; those for which no "
            "room came in time (full); those that made way for another client (cut).",
            ("reason",),
            sums((self.bodies.refused + self.imports.refused).items()),
        )
