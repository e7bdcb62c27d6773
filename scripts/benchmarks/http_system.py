"""A server as a system, in a process of its own on 127.0.0.1; and how ours is started."""

import asyncio
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx

from scripts.benchmarks import environment
from scripts.benchmarks.answer import Answer
from scripts.benchmarks.process import Child
from scripts.benchmarks.response import BadResponse
from scripts.benchmarks.timeline import Run
from scripts.benchmarks.traffic import Endpoint, Traffic
from scripts.benchmarks.workload import Workload

_START_SECONDS = 180.0
_POLL_SECONDS = 0.1
_READY = re.compile(r"ready: (http://\S+)/v1 serves (\S+)")


class HttpSystem:
    """`find` says where the server listens once it is ready, and None before.

    `endless`: what a request says so that its answer does not end by itself, where the server can
    be told so.
    """

    def __init__(
        self, name: str, child: Child, find: Callable[[Child], Endpoint | None], **endless: object
    ) -> None:
        self.name = name
        self.child = child
        self._find = find
        self._endless = endless
        self._endpoint: Endpoint

    def wait_until_ready(self) -> None:
        """Poll until it is there. Raises ChildFailed."""
        end = time.monotonic() + _START_SECONDS
        while (found := self._find(self.child)) is None:
            self.child.check_alive()
            if time.monotonic() > end:
                raise self.child.failure(f"was not ready after {_START_SECONDS:.0f} s")
            time.sleep(_POLL_SECONDS)
        self._endpoint = found

    @property
    def url(self) -> str:
        """Where it listens. Once it is ready."""
        return self._endpoint.url

    @property
    def model(self) -> str:
        """What its model is called. Once it is ready."""
        return self._endpoint.model

    def run(self, workload: Workload) -> Run:
        """All requests at once over HTTP. Raises ChildFailed."""
        before = self.child.cpu_seconds
        streams = [answer.stream for answer in self.ask(workload)]
        cpu = self.child.cpu_seconds - before
        late = streams.pop() if workload.late else None
        cut_short = any(stream.tokens < workload.out for stream in streams)
        return Run(tuple(streams), late, cpu, cut_short=cut_short and not workload.may_end)

    def ask(self, workload: Workload) -> list[Answer]:
        """The answers, that to the late prompt last. Raises ChildFailed."""
        extra = {} if workload.may_end else self._endless
        try:
            with self.child.watched():
                responses = asyncio.run(Traffic(self._endpoint, workload, extra).send())
            return [response.answer() for response in responses]
        except (httpx.HTTPError, BadResponse) as error:
            raise self.child.failure(f"broke off: {error!r}") from error


# The systems beside it have no cold tier either.
RAM_ONLY = "cache.hot_cache_only=true"


def start_ours(model: Path, folder: Path, *settings: str) -> HttpSystem:
    """`omlx-server serve`, with its default settings but these, and none of the user's."""
    config = folder / "empty.toml"
    config.touch()
    command = [sys.executable, "-m", "omlx_server", "serve", str(model), "--port", "0"]
    command += ["--config", str(config), "--set", "logging.level=warning"]
    command += [word for setting in settings for word in ("--set", setting)]
    child = Child(command, environment.clean(), folder / "omlx_server.log")
    return our_system(child)


def our_system(child: Child, **asked: object) -> HttpSystem:
    """A server that `start_ours` began, whose requests have these fields besides."""
    return HttpSystem("ours", child, _find_ours, ignore_eos=True, **asked)


def _find_ours(child: Child) -> Endpoint | None:
    match = _READY.search(child.output())
    return Endpoint(match[1], match[2]) if match else None
