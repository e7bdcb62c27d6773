"""The requests of one workload, sent at once by one asyncio client.

While tokens come, nothing is done but noting the time of each piece of the response; it is parsed
when the run is over, so that the client takes little of the machine that it measures.
"""

import asyncio
import time
from dataclasses import dataclass

import httpx

from scripts.benchmarks.response import BadResponse, Response
from scripts.benchmarks.workload import Late, Prompt, Workload

TIMEOUT_SECONDS = 600


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a server listens and what its model is called."""

    url: str
    model: str


class _Clock:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    def now(self) -> float:
        return time.perf_counter() - self._start


class Traffic:
    """The requests of one workload."""

    def __init__(self, endpoint: Endpoint, workload: Workload, extra: dict[str, object]) -> None:
        self._endpoint = endpoint
        self._workload = workload
        self._extra = extra
        self._responses = [Response(prompt) for prompt in workload.prompts]
        self._all_running = asyncio.Event()

    async def send(self) -> list[Response]:
        """The responses to the prompts, then the one to the late prompt, if there is one."""
        workload = self._workload
        # A proxy that the environment sets must not catch what goes to this machine.
        async with httpx.AsyncClient(timeout=TIMEOUT_SECONDS, trust_env=False) as client:
            clock = _Clock()
            requests = [self._ask(client, r, workload.out, clock) for r in self._responses]
            if workload.late is None:
                await asyncio.gather(*requests)
                return self._responses
            late = Response(workload.late.prompt)
            await asyncio.gather(*requests, self._ask_late(client, late, clock))
            return [*self._responses, late]

    async def _ask_late(self, client: httpx.AsyncClient, late: Response, clock: _Clock) -> None:
        await self._all_running.wait()
        await self._ask(client, late, 1, clock)

    async def _ask(
        self, client: httpx.AsyncClient, response: Response, out: int, clock: _Clock
    ) -> None:
        path, prompt = _asked(response.prompt)
        body = {
            "model": self._endpoint.model,
            **prompt,
            "max_tokens": out,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self._extra,
        }
        response.sent = clock.now()
        url = f"{self._endpoint.url}/v1/{path}"
        async with client.stream("POST", url, json=body) as reply:
            if not reply.is_success:
                await reply.aread()
                raise BadResponse(f"HTTP {reply.status_code}: {reply.text}")
            async for piece in reply.aiter_raw():
                response.pieces.append((clock.now(), piece))
                self._note_progress(response)

    def _note_progress(self, response: Response) -> None:
        late = self._workload.late
        if late is None or self._all_running.is_set() or not _has_started(response, late):
            return
        if all(_has_started(other, late) for other in self._responses):
            self._all_running.set()


def _asked(prompt: Prompt) -> tuple[str, dict[str, object]]:
    """Where a prompt goes, and the field of the body that holds it."""
    if prompt.text:
        return "completions", {"prompt": prompt.text}
    return "chat/completions", {"messages": prompt.messages}


def _has_started(response: Response, late: Late) -> bool:
    """Roughly: counts events. A keep-alive comment is none, and a whole answer has at least three.

    A fast server sends several in one piece.
    """
    return sum(piece.count(b"data:") for _, piece in response.pieces) >= late.after
