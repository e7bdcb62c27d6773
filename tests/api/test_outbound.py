"""A server that serves talks to nobody else, whatever a request asks for."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import orjson
import psutil
import pytest

from tests.api.harness import CHAT, ServerProcess, serving
from tests.api.routes import body_for, routes

# Read by the server's interpreter before anything else.
HOOK = """
import os, sys

_out = os.open(os.environ["AUDIT"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
_watched = ("socket.connect", "socket.sendto", "socket.sendmsg", "socket.getaddrinfo",
            "socket.gethostbyname", "urllib.Request", "http.client.connect", "os.system")

def _hook(event, arguments):
    if event in _watched:
        os.write(_out, (event + repr(arguments[-1:]) + chr(10)).encode())

sys.addaudithook(_hook)
"""


@contextmanager
def watching(server: ServerProcess) -> Iterator[set[Any]]:
    """The connections of the process that nobody made to it, also those that native code made."""
    port = httpx.URL(server.url).port
    found: set[Any] = set()
    ended = threading.Event()
    process = psutil.Process(server.pid)

    def watch() -> None:
        while not ended.wait(0.005):
            for connection in process.net_connections("inet"):
                if connection.laddr.port != port:
                    found.add((connection.laddr, connection.raddr, connection.status))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield found
    finally:
        ended.set()
        thread.join()


def bait(address: str) -> list[dict[str, Any]]:
    """Fields of chats that a careless server would follow."""
    picture = {"type": "image_url", "image_url": {"url": address}}
    sound = {"type": "input_audio", "input_audio": {"data": address, "format": "wav"}}
    schema = {"$schema": address, "$id": address, "$ref": f"{address}/schema.json"}
    function = {"name": "f", "parameters": {"type": "object", "properties": {"a": schema}}}
    user = [{"role": "user", "content": f"Read {address}"}]
    return [
        {"messages": [{"role": "user", "content": [picture]}]},
        {"messages": [{"role": "user", "content": [sound]}]},
        {"model": address, "messages": user},
        {"model": address.removeprefix("http://"), "messages": user},
        {"messages": user, "response_format": _as_format(schema)},
        {"messages": user, "guided_json": schema},
        {"messages": user, "tools": [{"type": "function", "function": function}]},
        {"messages": user, "tools": [{"type": "mcp", "server_url": address}]},
        {"messages": user, "chat_template": "{% include '" + address + "' %}"},
        {"messages": user, "user": address, "metadata": {"url": address}},
    ]


def _as_format(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}


def test_nothing_goes_out(
    tiny_models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hook").mkdir()
    (tmp_path / "hook" / "sitecustomize.py").write_text(HOOK)
    audit = tmp_path / "audit"
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "hook"))
    monkeypatch.setenv("AUDIT", str(audit))
    with socket.create_server(("127.0.0.1", 0)) as tempting:
        tempting.setblocking(False)
        host, port = tempting.getsockname()
        settings = (f"models.dirs={tiny_models}",)
        with serving("tiny", tmp_path / "server", *settings) as server:
            before = audit.read_text()
            with watching(server) as connections:
                _ask_everything(server)
                for fields in bait(f"http://{host}:{port}"):
                    body = {"model": "tiny", "max_tokens": 4, **fields}
                    server.http.post(f"{server.url}{CHAT}", json=body)
                time.sleep(0.2)
            assert "socket.getaddrinfo" in before, "the hook is at work: the server took its port"
            assert audit.read_text() == before
        assert not connections
        with pytest.raises(BlockingIOError):
            tempting.accept()


def _ask_everything(server: ServerProcess) -> None:
    for method, path in routes():
        content = orjson.dumps(body_for(path)) if method == "POST" else b""
        kind = "application/x-tar" if path.endswith("/import") else "application/json"
        headers = {"content-type": kind}
        server.http.request(method, f"{server.url}{path}", content=content, headers=headers)
