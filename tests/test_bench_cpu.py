"""`scripts/bench cpu`: its arithmetic, what it reads of streams, and a run on this checkout."""

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from scripts.benchmarks.cpu_measure import (
    QUANTITIES,
    Cost,
    CpuBench,
    cost,
    requirements,
    samples,
)
from scripts.benchmarks.cpu_plan import OTHER, OURS, CpuPlan
from scripts.benchmarks.metrics import Metric, collect
from scripts.benchmarks.progress import Lines
from scripts.benchmarks.response import BadResponse
from scripts.benchmarks.stream_client import Streamed, read_streams
from scripts.benchmarks.timed_server import ModelClock

ROOT = Path(__file__).parent.parent
PLAN = CpuPlan(repeats=1, streams=(1, 8), out=100)


def told(loop: float, mlx: float, model: float, rest: float = 0.0) -> dict[str, float]:
    return {"process": loop + mlx + rest, "loop": loop, "mlx": mlx, "model": model}


def metrics_of(ours: Cost, other: Cost) -> list[Metric]:
    sides = ((OURS, ours), (OTHER, other))
    return collect([[s for side, one in sides for n in (1, 8) for s in samples(side, n, one, one)]])


def test_the_host_is_the_event_loop_and_the_mlx_thread_outside_the_model() -> None:
    streams = [Streamed(sent=5.0, ended=7.0, tokens=600), Streamed(4.0, 6.0, 400)]
    before, after = told(1.0, 1.0, 0.5), told(1.1, 1.3, 0.6, rest=0.05)
    found = cost(before, after, streams)
    assert (found.seconds, found.tokens) == (3.0, 1000)
    values = {sample.spec.name: sample.value for sample in samples(OURS, 8, found, found)}
    assert values == {
        "host_8": pytest.approx(300),
        "loop_8": pytest.approx(100),
        "mlx_8": pytest.approx(200),
        "model_8": pytest.approx(100),
        "rest_8": pytest.approx(50),
        "ceiling_8": pytest.approx(1000 / 3),
        "ceiling_cpu_8": pytest.approx(2500),
    }


def test_half_of_the_time_of_the_other_and_twice_its_ceiling_are_asked_for() -> None:
    ours, other = Cost(told(1.0, 1.0, 0.5), 2.0, 100), Cost(told(3.0, 3.0, 1.0), 3.0, 100)
    found = requirements(metrics_of(ours, other), PLAN)
    assert [(r.value, r.met) for r in found] == [(0.3, True), (0.3, True), (1.5, False)]
    alone = collect([list(samples(OURS, 1, ours, ours))])
    assert [requirement.met for requirement in requirements(alone, PLAN)] == [None]


def test_what_is_called_inside_a_timed_call_counts_once() -> None:
    clock = ModelClock()

    def spin() -> None:
        sum(range(200_000))

    inner = clock.timed(spin)

    def outer() -> None:
        spin()
        inner()

    clock.timed(outer)()
    spin()
    assert 0 < clock.model <= clock.thread


@contextmanager
def replies(answers: Sequence[bytes]) -> Iterator[str]:
    """The URL of a server that gives each connection one of these answers, and closes it."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            for answer in answers:
                connection, _ = listening.accept()
                with connection:
                    connection.recv(1 << 16)
                    connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield "http://{}:{}".format(*listening.getsockname())
        thread.join()


def test_streams_are_read_to_their_ends_and_their_tokens_counted() -> None:
    ends = [b'data: {"usage":{"completion_tokens":%d}}\n\ndata: [DONE]\n\n' % n for n in (3, 4)]
    with replies([b"data: {}\n\n" * 2000 + end for end in ends]) as url:
        streams = read_streams(url, [{}, {}])
    assert sorted(stream.tokens for stream in streams) == [3, 4]
    assert all(stream.sent < stream.ended for stream in streams)


def test_a_stream_that_breaks_off_is_no_result() -> None:
    half = b'data: {"usage":{"completion_tokens":3}}\n\n'
    with replies([half]) as url, pytest.raises(BadResponse, match="broke off"):
        read_streams(url, [{}])


def test_two_checkouts_are_measured_by_turns(tmp_path: Path) -> None:
    bench = CpuBench(PLAN, {OURS: ROOT, OTHER: ROOT}, tmp_path)
    metrics = bench.run(Lines(3))
    assert [metric.spec.name for metric in metrics] == [
        f"{name}_{count}" for count in PLAN.streams for name in QUANTITIES
    ]
    for metric in metrics:
        if not metric.spec.name.startswith("rest"):  # a difference, which may be about nothing
            assert all((metric.median(side) or 0) > 0 for side in (OURS, OTHER)), metric.spec.name
