"""What it costs a busy server that somebody listens to GET /admin/live.

A window is a number of streams that decode from their beginning to their end, all of one length, so
that each window is the same work. Nothing is drafted. Listeners are threads of this process that
read all that comes.
"""

import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import NamedTuple
from urllib.parse import urlsplit

from scripts.benchmarks.http_system import HttpSystem
from scripts.benchmarks.metrics import Better, Metric, Requirement, Sample, Spec, collect, find
from scripts.benchmarks.page_plan import WITH, WITHOUT, PagePlan
from scripts.benchmarks.progress import Steps
from scripts.benchmarks.response import BadResponse
from scripts.benchmarks.stream_client import read_streams, stream_body

BOUND = 0.99
_WARM_UP_OUT = 8
_TIMEOUT_SECONDS = 60.0
_PIECE = 1 << 16


class Window(NamedTuple):
    """Output tokens a second, CPU milliseconds of the server's process for a token, and the events
    that listeners read."""

    rate: float
    cpu: float
    events: int


class Listener:
    """Reads GET /admin/live until it is closed. Raises BadResponse when it is refused."""

    def __init__(self, url: str) -> None:
        where = urlsplit(url)
        self._socket = socket.create_connection((where.hostname, where.port), _TIMEOUT_SECONDS)
        self._socket.sendall(f"GET /admin/live HTTP/1.1\r\nHost: {where.netloc}\r\n\r\n".encode())
        first = self._socket.recv(_PIECE)
        if not first.startswith(b"HTTP/1.1 200"):
            raise BadResponse(f"GET /admin/live: {first[:200]!r}")
        self.events = first.count(b"data: ")
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End it. Idempotent."""
        with suppress(OSError):  # the server may have closed it
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()

    def _read(self) -> None:
        while piece := self._socket.recv(_PIECE):
            self.events += piece.count(b"data: ")


class PageBench:
    """Measures one server, which is ready and has these rows free."""

    def __init__(self, server: HttpSystem, plan: PagePlan) -> None:
        self._server = server
        self._plan = plan

    def run(self, steps: Steps) -> list[Metric]:
        """All windows by turns. Raises ChildFailed."""
        plan = self._plan
        self._window(0, _WARM_UP_OUT)
        rounds = []
        for number in range(plan.repeats):
            steps.begin(f"round {number + 1}/{plan.repeats}")
            rounds.append(list(self._round(number)))
            steps.done(", ".join(_told(rounds[-1])))
        return collect(rounds)

    def _round(self, number: int) -> Iterator[Sample]:
        """A pair of windows for each number of listeners, in another order in each round."""
        for count in self._plan.listeners:
            order = (0, count) if number % 2 else (count, 0)
            for listeners in order:
                window = self._window(listeners, self._plan.out)
                yield from samples(count, WITH if listeners else WITHOUT, window)

    def _window(self, listeners: int, out: int) -> Window:
        bodies = [self._body(number, out) for number in range(self._plan.streams)]
        child, url = self._server.child, self._server.url
        try:
            with _listening(url, listeners) as open_listeners:
                before = child.cpu_seconds
                streams = read_streams(url, bodies)
                cpu = child.cpu_seconds - before
        except (OSError, BadResponse) as error:
            raise child.failure(f"broke off: {error!r}") from error
        seconds = max(one.ended for one in streams) - min(one.sent for one in streams)
        tokens = sum(one.tokens for one in streams)
        events = sum(one.events for one in open_listeners)
        return Window(tokens / seconds, 1000 * cpu / tokens, events)

    def _body(self, number: int, out: int) -> dict[str, object]:
        return stream_body(self._server.model, f"{number} at {time.monotonic():018.6f}", out)


@contextmanager
def _listening(url: str, count: int) -> Iterator[list[Listener]]:
    with ExitStack() as stack:
        listeners = list[Listener]()
        for _ in range(count):
            listeners.append(Listener(url))
            stack.callback(listeners[-1].close)
        yield listeners


def samples(count: int, side: str, window: Window) -> Iterator[Sample]:
    """The quantities of a window that is of the pair with so many listeners."""
    name = "1 listener" if count == 1 else f"{count} listeners"
    rate = Spec(f"rate_{count}", f"output, {name} or none", "tok/s", Better.HIGHER)
    cpu = Spec(f"cpu_{count}", "  CPU of the server a token", "ms", Better.LOWER)
    events = Spec(f"events_{count}", "  events that were read", "", Better.HIGHER)
    yield Sample(rate, side, window.rate)
    yield Sample(cpu, side, window.cpu)
    yield Sample(events, side, window.events)


def requirements(metrics: Sequence[Metric]) -> list[Requirement]:
    """One listener costs at most a hundredth of the output: by the medians of all windows with it
    and without."""
    metric = find(metrics, "rate_1")
    one, none = (metric.median(side) if metric else None for side in (WITH, WITHOUT))
    ratio = one / none if one and none else None
    return [Requirement("output, 1 listener / none, medians", ratio, BOUND, Better.HIGHER)]


def _told(found: Sequence[Sample]) -> Iterator[str]:
    for sample in found:
        if sample.spec.name.startswith("rate_"):
            yield f"{sample.spec.title}, {sample.system}: {sample.value:.1f}"
