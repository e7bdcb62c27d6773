"""A server that gives commands prepared answers."""

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from omlx_server.process.running import announcing
from tests.cli.home import CONFIG
from tests.cli.json_handler import JsonHandler

KEY, TOKEN = "sk-hunter2", "t" * 32


def item(name: str, state: str = "loaded", **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "names": [name, name.rpartition("/")[2]],
        "kind": "chat",
        "state": state,
        "pinned": False,
        "default": False,
        "weight_bytes": 1_500_000 if state == "loaded" else None,
        "disk_bytes": 1_600_000,
        "context_length": 2048,
        "chunk_tokens": 256 if state == "loaded" else None,
        "chunk_tokens_alone": 1024 if state == "loaded" else None,
        "in_use": 0,
        "idle_seconds": 130.0,
        "ttl_seconds": 0,
        "problem": None,
        **more,
    }


@dataclass
class Server:
    url: str = ""
    items: list[dict[str, Any]] = field(default_factory=list)
    asked: list[tuple[str, Any]] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)


def handler_of(server: Server) -> type[JsonHandler]:
    class Handler(JsonHandler):
        def do_GET(self) -> None:
            server.headers = {name.lower(): value for name, value in self.headers.items()}
            if server.headers.get("x-admin-token") != TOKEN:
                self.say(403, {"error": {"message": "this needs the admin token"}})
            else:
                memory = {"limit": 8_000_000, "weights": 1_500_000}
                self.say(200, {"models": server.items, "memory": memory})

        def do_POST(self) -> None:
            server.headers = {name.lower(): value for name, value in self.headers.items()}
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            server.asked.append((self.path, body))
            if self.headers["Content-Type"] != "application/json":
                self.say(415, {"error": {"message": "no JSON"}})
            found = [i for i in server.items if body["model"] in i["names"]]
            if found:
                self.say(200, found[0])
            else:
                self.say(404, {"error": {"message": f"no model {body['model']}"}})

    return Handler


@pytest.fixture
def server(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """At the configured address, with the token of this user."""
    known = Server(items=[item("acme/big", pinned=True, default=True), item("tiny", "absent")])
    with ThreadingHTTPServer(("127.0.0.1", 0), handler_of(known)) as http:
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        known.url = f"http://127.0.0.1:{http.server_port}"
        (home / CONFIG).write_text(
            f'[server]\nport = {http.server_port}\n[auth]\napi_keys = ["{KEY}"]\n'
            f'[models]\ndirs = ["{home}/models"]\nuse_hf_cache = false\n'
        )
        monkeypatch.setenv("OMLX_ADMIN_TOKEN", TOKEN)
        with announcing(known.url):
            yield known
        http.shutdown()
        thread.join()
