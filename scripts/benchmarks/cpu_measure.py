"""The CPU time of a server's threads for a token, of one checkout or of two by turns.

The model has one layer, and a server of it tells the CPU time of its event loop, of its mlx thread,
and of the part of that thread that is in calls of the model and of MLX to evaluate
(`timed_server.py`). A second server has a model that computes nothing: what it gives in a second is
the most that any device could. Nothing is drafted, so that each step gives a token to each row.

Times are of whole requests with short prompts: what a request costs is shared by its tokens.
"""

import json
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from scripts.benchmarks import environment, timed_server, tiny
from scripts.benchmarks.cpu_plan import OTHER, OURS, CpuPlan
from scripts.benchmarks.http_system import RAM_ONLY, our_system
from scripts.benchmarks.metrics import Better, Metric, Requirement, Sample, Spec, collect, find
from scripts.benchmarks.process import Child
from scripts.benchmarks.progress import Steps
from scripts.benchmarks.response import BadResponse
from scripts.benchmarks.stream_client import Streamed, read_streams, stream_body

DEVICES = ("real", timed_server.FREE)
_WARM_UP_OUT = 20
_SETTLE_SECONDS = 0.2
_TELL_SECONDS = 10.0
_POLL_SECONDS = 0.005
# The ceiling is asked for where many streams share a step.
_MANY = 8
HOST, CEILING = "host", "ceiling"
QUANTITIES = {
    HOST: ("CPU a token outside the model, {}", "µs", Better.LOWER),
    "loop": ("  event loop", "µs", Better.LOWER),
    "mlx": ("  mlx thread outside the model", "µs", Better.LOWER),
    "model": ("CPU of calls of the model and MLX", "µs", Better.LOWER),
    "rest": ("CPU of MLX's own threads and others", "µs", Better.LOWER),
    CEILING: ("output with a device that costs nothing, {}", "tok/s", Better.HIGHER),
    "ceiling_cpu": ("  by the CPU time of both threads", "tok/s", Better.HIGHER),
}
"""By name: a title, a unit, and what is better."""

Times = Mapping[str, float]


class Cost(NamedTuple):
    """What a run took: CPU seconds, by name as the server tells them, and wall seconds."""

    times: Times
    seconds: float
    tokens: int

    def micros(self, *threads: str) -> float:
        """The CPU microseconds of these threads for a token."""
        return 1e6 * sum(self.times[thread] for thread in threads) / self.tokens


class TimedServer:
    """A server of the checkout in `tree`, whose model computes nothing with `device` free."""

    def __init__(self, tree: Path, device: str, model: Path, folder: Path, rows: int) -> None:
        self._times = folder / f"{device}.json"
        command = [sys.executable, "-P", str(Path(timed_server.__file__)), str(self._times), device]
        command += ["serve", str(model), "--port", "0", "--config", str(folder / "empty.toml")]
        for setting in ("logging.level=warning", RAM_ONLY, f"scheduler.max_batch_size={rows}"):
            command += ["--set", setting]
        (folder / "empty.toml").touch()
        env = {**environment.clean(), "PYTHONPATH": str(tree)}
        self.child = Child(command, env, folder / f"{device}.log")
        self._system = our_system(self.child)

    def run(self, count: int, out: int) -> Cost:
        """`count` streams of `out` tokens each. Raises ChildFailed."""
        before = self._told()
        try:
            streams = read_streams(self._system.url, [self._body(i, out) for i in range(count)])
        except (OSError, BadResponse) as error:
            raise self.child.failure(f"broke off: {error!r}") from error
        time.sleep(_SETTLE_SECONDS)  # until it rests
        after = self._told()
        return cost(before, after, streams)

    def wait_until_ready(self) -> None:
        """Raises ChildFailed."""
        self._system.wait_until_ready()

    def _body(self, number: int, out: int) -> dict[str, object]:
        return stream_body(self._system.model, f"{number} at {time.monotonic()}", out)

    def _told(self) -> Times:
        """The CPU seconds of its threads until now."""
        self._times.unlink(missing_ok=True)
        self.child.signal(signal.SIGUSR1)
        end = time.monotonic() + _TELL_SECONDS
        while not self._times.exists():
            self.child.check_alive()
            if time.monotonic() > end:
                raise self.child.failure("does not tell its times")
            time.sleep(_POLL_SECONDS)
        told: Times = json.loads(self._times.read_text(encoding="utf-8"))
        return told


class Pair(NamedTuple):
    """Two servers of one checkout."""

    real: TimedServer
    free: TimedServer


class CpuBench:
    """Measures by turns the checkouts in `trees`, which are named by their side. `folder` takes the
    model, and logs."""

    def __init__(self, plan: CpuPlan, trees: Mapping[str, Path], folder: Path) -> None:
        self._plan = plan
        self._trees = trees
        self._folder = folder

    def run(self, steps: Steps) -> list[Metric]:
        """Start the servers, measure, end them. Raises ChildFailed."""
        plan = self._plan
        with ExitStack() as stack:
            steps.begin("start and warm up")
            servers = self._start(stack)
            steps.done("ready")
            rounds: list[list[Sample]] = []
            for number in range(plan.repeats):
                rounds.append([])
                for count in plan.streams:
                    steps.begin(f"round {number + 1}/{plan.repeats}, {count} streams")
                    rounds[-1] += self._round(servers, count, number)
                    steps.done(", ".join(_told(rounds[-1], count)))
        return collect(rounds)

    def _start(self, stack: ExitStack) -> dict[str, Pair]:
        model, most = tiny.save(self._folder / "model"), max(self._plan.streams)
        servers = dict[str, Pair]()
        for side, tree in self._trees.items():
            folder = self._folder / str(len(servers))
            folder.mkdir()
            pair = Pair(*(TimedServer(tree, device, model, folder, most) for device in DEVICES))
            for server in pair:
                stack.callback(server.child.end)
            servers[side] = pair
        for pair in servers.values():
            for server in pair:
                server.wait_until_ready()
                server.run(most, _WARM_UP_OUT)
        return servers

    def _round(self, servers: Mapping[str, Pair], count: int, number: int) -> Iterator[Sample]:
        """Each server once, in another order in each round."""
        sides = list(servers)
        for side in sides if number % 2 else sides[::-1]:
            costs = [server.run(count, self._plan.out) for server in servers[side]]
            yield from samples(side, count, *costs)


def cost(before: Times, after: Times, streams: Sequence[Streamed]) -> Cost:
    """What these streams took between two tellings of a server."""
    seconds = max(stream.ended for stream in streams) - min(stream.sent for stream in streams)
    times = {thread: after[thread] - before[thread] for thread in before}
    return Cost(times, seconds, sum(stream.tokens for stream in streams))


def samples(side: str, count: int, real: Cost, free: Cost) -> Iterator[Sample]:
    """The quantities of one side at so many streams, beside the one-layer model and a free one."""
    loop, mlx, model = (real.micros(thread) for thread in ("loop", "mlx", "model"))
    values = {
        HOST: loop + mlx - model,
        "loop": loop,
        "mlx": mlx - model,
        "model": model,
        "rest": real.micros("process") - loop - mlx,
        CEILING: free.tokens / free.seconds,
        "ceiling_cpu": 1e6 / free.micros("loop", "mlx"),
    }
    for name, (title, unit, better) in QUANTITIES.items():
        spec = Spec(f"{name}_{count}", title.format(_streams(count)), unit, better)
        yield Sample(spec, side, values[name])


def requirements(metrics: Sequence[Metric], plan: CpuPlan) -> list[Requirement]:
    """The bounds of issue 22 against the version before it."""
    found = []
    for name, bound, better in ((HOST, 0.5, Better.LOWER), (CEILING, 2.0, Better.HIGHER)):
        for count in plan.streams:
            metric = find(metrics, f"{name}_{count}")
            if metric and (name == HOST or count >= _MANY):
                ratio = metric.ratio(OURS, OTHER)
                title = f"{metric.spec.title}, against {OTHER}"
                found.append(Requirement(title, ratio, bound, better))
    return found


def _told(found: Sequence[Sample], count: int) -> list[str]:
    known = [sample for sample in found if sample.spec.name == f"{HOST}_{count}"]
    return [f"{sample.system}: {sample.value:.0f} µs a token" for sample in known]


def _streams(count: int) -> str:
    return "1 stream" if count == 1 else f"{count} streams"
