"""The real server as a subprocess, and the few things that tests ask of it over HTTP."""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx
import orjson
import psutil
from prometheus_client.parser import text_string_to_metric_families

from tests.api.forked import environment, start

REPO = Path(__file__).parent.parent.parent
CHAT = "/v1/chat/completions"
READY = "omlx-server is ready: "
START_SECONDS = 600.0  # the starter model may have to be fetched first
GRACE_SECONDS = 60.0  # a server has 25 s for answers at work, and machines are busy
PATIENCE = 60.0
"""Seconds to wait for what must come. Less only where coming late is the fault in question."""
_PAUSE = 0.25  # what takes longer than this was a machine that paused
ADMIN_TOKEN = "admin-token-of-the-tests"
UNPROBED = "memory.activation_reserve=64MB"
"""A setting of servers whose memory is in no question: probes would take half a second."""
MARKER = "Xq7marker93Zz"
"""Stands in every hostile input; nothing that the server says or logs may hold it."""

T = TypeVar("T")
Json = dict[str, Any]


class ServerProcess:
    """`omlx-server serve MODEL` on a free port, or the one given. Its output goes to `log`."""

    def __init__(
        self,
        model: str,
        directory: Path,
        settings: Sequence[str] = (),
        config: str = "",
        port: int = 0,
        *,
        forked: bool = True,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """`environ`: variables that it has beside those of the tests. One that starts itself anew
        can't be `forked` from a process that has its modules."""
        directory.mkdir(parents=True, exist_ok=True)
        self.config = directory / "omlx.toml"
        self.config.write_text(config)
        self._log = directory / "server.log"
        settings = (f"cache.cold_dir={directory / 'kv'}", "cache.cold_min_free_disk=0", *settings)
        sets = [word for setting in settings for word in ("--set", setting)]
        words = ["serve", model, "--port", str(port), *sets]
        own = {"OMLX_ADMIN_TOKEN": ADMIN_TOKEN, "OMLX_CONFIG": str(self.config)}
        if any(setting.startswith("models.dirs=") for setting in settings):
            own["HOME"] = str(directory)  # the models at home are always served, too
        with self._log.open("wb") as output:
            own_environ = environment(os.environ, **own, **(environ or {}))
            self._process = start(words, directory, own_environ, output, forked=forked)
        self.pid = self._process.pid
        self.http = httpx.Client(timeout=60, trust_env=False)
        self.url = ""
        self.model = ""

    @property
    def log(self) -> str:
        """What there is so far: it may end within a character."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def memory(self) -> int:
        """Resident bytes."""
        return int(psutil.Process(self.pid).memory_info().rss)

    @property
    def cpu(self) -> float:
        """Seconds that it has computed: what a busy machine does not make longer."""
        times = psutil.Process(self.pid).cpu_times()
        return float(times.user + times.system)

    def wait_ready(self) -> None:
        def line() -> str | None:
            assert self.running, self.log
            return next((x for x in self.log.splitlines() if x.startswith(READY)), None)

        words = wait_for(line, START_SECONDS).removeprefix(READY).split()
        self.url, self.model = words[0].removesuffix("/v1"), words[2]

    def terminate(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    def wait(self, seconds: float = GRACE_SECONDS) -> int:
        """The exit code."""
        return self._process.wait(seconds)

    def stop(self) -> None:
        """End it as a service manager does, and see that it went well."""
        if self.running:
            self.terminate()
        assert self.wait() == 0, self.log
        assert "Traceback" not in self.log, self.log
        assert MARKER not in self.log, "the log holds something of a prompt"

    def kill(self) -> None:
        """For the end of a test, however it went."""
        self.http.close()
        if self.running:
            self._process.kill()
            self._process.wait()

    # -- over HTTP -----------------------------------------------------------------------

    def post(self, body: Json, **headers: str) -> httpx.Response:
        """A chat completion. `headers` have underscores for hyphens."""
        return self.post_raw(json.dumps(body).encode(), **headers)

    def post_raw(self, content: bytes | Iterator[bytes], **headers: str) -> httpx.Response:
        names = {"content-type": "application/json"}
        names |= {name.replace("_", "-"): value for name, value in headers.items()}
        return self.http.post(f"{self.url}{CHAT}", content=content, headers=names)

    def chat(self, content: str, **fields: Any) -> Json:
        """The answer to one user message. Greedy unless `fields` say otherwise."""
        response = self.post(self.body(content, **fields))
        assert response.status_code == 200, response.text
        answer: Json = response.json()
        return answer

    def body(self, content: str, **fields: Any) -> Json:
        messages = [{"role": "user", "content": content}]
        return {"model": self.model, "messages": messages, "temperature": 0, **fields}

    def canary(self) -> str:
        """An answer that is always the same while the server is sound."""
        answer = self.chat("Sing, canary.", max_tokens=16, ignore_eos=True)
        return text_of(answer)

    def load(self) -> Json:
        """The engine's part of /health."""
        token = {"x-admin-token": ADMIN_TOKEN}  # it may have keys
        health = self.http.get(f"{self.url}/health", headers=token)
        engine: Json = health.json()["engines"][0]
        return engine

    def wait_idle(self, seconds: float = PATIENCE) -> None:
        """Raises AssertionError when somebody is still in the batch or in the queue."""
        wait_for(lambda: busy(self.load()) == 0, seconds)


@contextmanager
def serving(
    model: str,
    directory: Path,
    *settings: str,
    config: str = "",
    environ: Mapping[str, str] | None = None,
    forked: bool = True,
) -> Iterator[ServerProcess]:
    """A server for one `with`; it must end in peace."""
    server = ServerProcess(model, directory, settings, config, environ=environ, forked=forked)
    try:
        server.wait_ready()
        yield server
        server.stop()
    finally:
        server.kill()


def busy(load: Json) -> int:
    return int(load["running"]) + int(load["prefilling"]) + int(load["waiting"])


def text_of(answer: Json, index: int = 0) -> str:
    return str(answer["choices"][index]["message"]["content"])


def cached(answer: Json) -> int:
    """Tokens of the prompt that were in the cache."""
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


def wait_idle_soon(server: ServerProcess) -> None:
    """Who has just left is computed no further. Of 4,000 tokens the rest would take the server more
    than twice as many seconds of a core."""
    left = server.cpu
    server.wait_idle()
    assert server.cpu - left < 2


def wait_for(look: Callable[[], T | None], seconds: float = PATIENCE) -> T:
    """Look until there is something true. Pauses of the machine do not count."""
    waited, last = 0.0, time.monotonic()
    while not (found := look()):
        assert waited < seconds, f"nothing came in {seconds} s"
        time.sleep(0.01)
        last, before = time.monotonic(), last
        waited += min(last - before, _PAUSE)
    return found


def assert_envelope(response: httpx.Response, status: int) -> Json:
    """OpenAI's error shape, exactly. Returns what is inside."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert set(body) == {"error"}
    error: Json = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str) and error["message"]
    assert isinstance(error["type"], str) and error["type"]
    assert error["param"] is None or isinstance(error["param"], str)
    assert error["code"] is None or isinstance(error["code"], str)
    names_it = error["code"] in ("model_not_found", "adapter_not_found")
    assert names_it or MARKER not in response.text, "the input was echoed"
    return error


def assert_ollama_envelope(response: httpx.Response, status: int) -> str:
    """Ollama's error shape, exactly. Returns the message."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert set(body) == {"error"} and isinstance(body["error"], str) and body["error"]
    assert MARKER not in response.text, "the input was echoed"
    return str(body["error"])


def samples(text: str) -> dict[str, float]:
    """What /metrics tells, by name and labels. Several models are summed up."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = {name: value for name, value in sample.labels.items() if name != "model_name"}
            inside = ",".join(f'{name}="{value}"' for name, value in sorted(labels.items()))
            key = f"{sample.name}{{{inside}}}" if labels else sample.name
            found[key] = found.get(key, 0) + sample.value
    return found


def stream_events(text: str) -> list[Json]:
    """The JSON of every `data:` of a whole stream, which must end with [DONE]."""
    blocks = [block for block in text.split("\n\n") if block and not block.startswith(":")]
    assert all(block.startswith("data: ") for block in blocks)
    assert blocks[-1] == "data: [DONE]" and text.endswith("\n\n")
    return [orjson.loads(block.removeprefix("data: ")) for block in blocks[:-1]]
