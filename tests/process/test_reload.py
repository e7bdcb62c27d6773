"""A config that changes under a real server with clients: what applies, what waits, what is wrong,
and that no answer notices."""

import json
import os
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.api.harness import Json, ServerProcess, stream_events, text_of, wait_for
from tests.service.made import save_small

CLIENTS = 8
# Long enough for some blocks, and with a common head.
STORY = "A lantern hung above the harbour gate, and nobody remembered who had lit it. "


class Clients:
    """Each asks one question over and over, every second time as a stream."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server
        self._stop = threading.Event()
        self.wrong: list[str] = []
        self.answers = 0
        self.expected = [self._ask(number) for number in range(CLIENTS)]

    @contextmanager
    def at_work(self) -> Iterator[None]:
        threads = [threading.Thread(target=self._run, args=(n,)) for n in range(CLIENTS)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in threads:
                thread.join(60)
            assert not any(thread.is_alive() for thread in threads), "a request hangs"

    def _run(self, number: int) -> None:
        streams = False
        while not self._stop.is_set():
            said = self._stream(number) if streams else self._ask(number)
            streams = not streams
            self.answers += 1
            if said != self.expected[number]:
                self.wrong.append(f"{number}: {said!r}, not {self.expected[number]!r}")

    def _ask(self, number: int) -> str:
        return text_of(self._server.chat(**_question(number)))

    def _stream(self, number: int) -> str:
        body = self._server.body(**_question(number), stream=True)
        response = self._server.post(body)
        if response.status_code != 200:
            return response.text
        chunks = stream_events(response.text)
        return "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks)


def _question(number: int) -> dict[str, Any]:
    return {"content": STORY * 3 + f"Who was it, {number}?", "max_tokens": 24, "ignore_eos": True}


class Config:
    """The server's file. All that is read of the log is what came since the last `write`."""

    def __init__(self, server: ServerProcess, path: Path) -> None:
        self._server = server
        self._path = path
        self._from = 0

    def write(self, text: str, *, hang_up: bool = False) -> None:
        """The server finds it within two seconds; with `hang_up`, it looks at once."""
        self._from = len(self._server.log)
        fresh = self._path.with_suffix(".new")
        fresh.write_text(text)
        fresh.replace(self._path)
        if hang_up:
            os.kill(self._server.pid, signal.SIGHUP)

    def hang_up(self) -> None:
        self._from = len(self._server.log)
        os.kill(self._server.pid, signal.SIGHUP)

    def remove(self) -> None:
        self._from = len(self._server.log)
        self._path.unlink()

    def said(self, words: str) -> str:
        """The message in the log with these words, once it is there."""

        def look() -> str | None:
            whole, _, _ = self._server.log[self._from :].rpartition(
                "\n"
            )  # the last is being written
            lines = whole.splitlines()
            entries = [json.loads(line) for line in lines if line.startswith("{")]
            messages = [f"{entry['level']}: {entry['message']}" for entry in entries]
            return next((message for message in messages if words in message), None)

        return wait_for(look, 20)


def metrics(server: ServerProcess) -> str:
    return server.http.get(f"{server.url}/metrics").text


def budget(server: ServerProcess) -> int:
    text = metrics(server)
    found = re.search(r'^omlx_cache_budget_bytes\{tier="hot"\} (\S+)$', text, re.MULTILINE)
    assert found, text
    return int(float(found[1]))


def health(server: ServerProcess) -> dict[str, object]:
    answer = server.http.get(f"{server.url}/health")
    assert answer.status_code == 200
    config: dict[str, object] = answer.json()["config"]
    return config


def document(server: ServerProcess, headers: dict[str, str]) -> Json:
    found: Json = server.http.get(f"{server.url}/openapi.json", headers=headers).json()
    return found


def is_narrow(load: Json) -> bool:
    """Who had a row before has left it."""
    return bool(load["waiting"] and load["running"] + load["prefilling"] <= 3)


def files(directory: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in directory.rglob("*")}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    save_small(tmp_path / "models" / "org" / "tiny")
    (tmp_path / "omlx.toml").write_text("[cache]\nhot_cache_max_bytes = '64MiB'\n")
    return tmp_path


@contextmanager
def server_at(place: Path) -> Iterator[tuple[ServerProcess, Config]]:
    sets = f"models.dirs={place / 'models'}", "memory.activation_reserve=64MB"
    server = ServerProcess("org/tiny", place, sets, (place / "omlx.toml").read_text())
    try:
        server.wait_ready()
        yield server, Config(server, server.config)
        server.stop()
    finally:
        server.kill()


SMALL = "[logging]\nlevel = 'debug'\n[cache]\nhot_cache_max_bytes = '256KiB'\n"
MEMORY_ONLY = f"{SMALL}hot_cache_only = true\n"
ROWS = "[scheduler]\nmax_batch_size = 3\n[server]\nport = 9\nwrite_timeout_seconds = 7\n"


def test_a_config_that_changes_under_load(place: Path) -> None:
    with server_at(place) as (server, config):
        clients = Clients(server)
        assert budget(server) == 64 << 20
        with clients.at_work():
            config.write(SMALL + ROWS)
            line = config.said("settings: ")
            assert "cache.hot_cache_max_bytes 64MiB -> 256KiB" in line
            assert 'logging.level "info" -> "debug"' in line
            assert "scheduler.max_batch_size 8 -> 3" in line
            assert "needs a restart: server.write_timeout_seconds 30 -> 7" in line
            assert "server.port" not in line, "--port is stronger"
            wait_for(lambda: budget(server) == 256 << 10, 5)
            config.said("debug: ")
            waiting = ["server.write_timeout_seconds"]
            assert health(server) == {"problem": None, "needs_restart": waiting}
            wait_for(lambda: is_narrow(server.load()), 10)

            config.write(SMALL + "[cache\n", hang_up=True)
            line = config.said("settings stay")
            assert "line 5, column 7: invalid TOML" in line
            assert "invalid TOML" in str(health(server)["problem"])
            assert budget(server) == 256 << 10
            stranger = server.http.get(f"{server.url}/health", headers={"host": "x"})
            assert "TOML" not in stranger.text

            assert files(place / "kv")
            config.write(MEMORY_ONLY)
            line = config.said("settings: ")
            assert "cache.hot_cache_only false -> true" in line
            assert "scheduler.max_batch_size 3 -> 8" in line
            assert health(server) == {"problem": None, "needs_restart": []}
            before, answers = files(place / "kv"), clients.answers
            wait_for(lambda: clients.answers > answers + 3 * CLIENTS, 20)
            assert files(place / "kv") == before, "the directory was touched"
            assert 'omlx_cache_budget_bytes{tier="cold"}' not in metrics(server)
        assert not clients.wrong
        server.wait_idle(5)
        config.hang_up()
        config.said("settings: nothing has changed")
        assert server.log.count("settings stay") == 1
    assert files(place / "kv") == before


def test_what_requests_meet_at_the_door(place: Path) -> None:
    with server_at(place) as (server, config):
        origin = {"origin": "https://chat.example.org"}
        assert server.http.get(f"{server.url}/v1/models", headers=origin).status_code == 403
        assert "security" not in document(server, {})["paths"]["/v1/models"]["get"]
        key = {"authorization": "Bearer second"}
        config.write(
            "[auth]\napi_keys = ['first', 'second']\n[sampling]\nmax_tokens = 3\n"
            "[server]\nmax_body_bytes = '1KiB'\ncors_origins = ['https://chat.example.org']\n",
            hang_up=True,
        )
        assert "first" not in config.said("settings: ")
        assert "security" in document(server, key)["paths"]["/v1/models"]["get"]
        assert server.http.get(f"{server.url}/v1/models").status_code == 401
        answer = server.http.get(f"{server.url}/v1/models", headers=key | origin)
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == origin["origin"]
        short = server.post(server.body("Hi", ignore_eos=True), **key).json()
        assert short["usage"]["completion_tokens"] == 3
        assert server.post(server.body("x" * 2000), **key).status_code == 413

        config.write("[auth]\napi_keys = ['k']\n[memory]\nlimit = '1KB'\n", hang_up=True)
        assert "less than the weights" in config.said("settings stay")
        assert server.http.get(f"{server.url}/v1/models").status_code == 401, "the rest stays, too"

        config.write("", hang_up=True)
        assert "auth.api_keys is not in the config" in config.said("settings stay")
        assert server.http.get(f"{server.url}/v1/models").status_code == 401
        told = server.http.get(f"{server.url}/health", headers=key).json()["config"]["problem"]
        assert "auth.api_keys is not in the config" in told

        config.write("[auth]\napi_keys = []\n", hang_up=True)
        config.said("settings: ")
        assert server.http.get(f"{server.url}/v1/models").status_code == 200
        config.remove()
        assert "not found" in config.said("settings stay")
