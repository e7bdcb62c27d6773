"""What is stored for this user's server is for nobody who listens at its address instead."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from typer.testing import CliRunner, Result

from omlx_server.cli.app import app
from omlx_server.cli.server_client import trust
from omlx_server.cli.server_client.http import own_server
from omlx_server.cli.server_client.page import signed_in_url
from omlx_server.cli.server_client.trust import trusted_url
from omlx_server.process.running import announcing
from omlx_server.settings import load
from tests.cli.home import CONFIG

KEY, TOKEN = "sk-hunter2", "t" * 32
COMMANDS = [
    "status",
    "bench",
    "chat --once hi",
    "launch aider --print",
    "ps",
    "load m",
    "unload m",
    "pin m",
    "up",
    "ps --url {url}",
    "status --url {url}",
]


class Stranger(ThreadingHTTPServer):
    """Answers as our server does, and notes all that it is told."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.heard: list[str] = []


class Answers(BaseHTTPRequestHandler):
    server: Stranger

    def do_GET(self) -> None:
        length = int(self.headers["Content-Length"] or 0)
        said = f"{self.path} {self.headers} {self.rfile.read(length).decode()}"
        self.server.heard.append(said)
        body = b'{"status": "ready", "engines": [], "data": [{"id": "m"}], "models": []}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def listening() -> Iterator[Stranger]:
    with Stranger() as stranger:
        thread = threading.Thread(target=stranger.serve_forever, args=(0.02,))
        thread.start()
        yield stranger
        stranger.shutdown()
        thread.join()


@pytest.fixture
def stranger(home: Path) -> Iterator[Stranger]:
    """At the configured address of a user who has a key and a token."""
    with listening() as server:
        (home / CONFIG).write_text(
            f'[server]\nport = {server.server_port}\n[auth]\napi_keys = ["{KEY}"]\n'
            f'[models]\ndirs = ["{home}/models"]\nuse_hf_cache = false\n'
        )
        (home / CONFIG).with_name("admin-token").write_text(TOKEN)
        trust.say_untrusted.cache_clear()
        yield server


def omlx(command: str, url: str = "") -> Result:
    return CliRunner().invoke(app, command.format(url=url).split())


@pytest.mark.parametrize("command", COMMANDS)
def test_a_stranger_at_the_port_hears_no_secret(command: str, stranger: Stranger) -> None:
    said = omlx(command, stranger.url).stderr
    heard = "".join(stranger.heard)
    assert heard and KEY not in heard and TOKEN not in heard
    is_without_secrets = command.startswith("status --url")
    notes = said.count(f"note: no server of this user is known at {stranger.url}")
    assert notes == (0 if is_without_secrets else 1), said


def test_a_stranger_is_not_asked_for_a_link_that_signs_in(stranger: Stranger) -> None:
    page = f"{stranger.url}/"
    assert signed_in_url(own_server(load().settings), page) == page
    assert stranger.heard and TOKEN not in stranger.heard[0] and KEY not in stranger.heard[0]


@pytest.mark.parametrize(("command", "secret"), [("status", KEY), ("ps", KEY), ("ps", TOKEN)])
def test_a_server_of_this_user_gets_them(command: str, secret: str, stranger: Stranger) -> None:
    with announcing(stranger.url):
        assert "note:" not in omlx(command).stderr
    assert secret in "".join(stranger.heard)


def test_what_is_given_goes_where_it_is_sent(
    stranger: Stranger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMLX_ADMIN_TOKEN", "given" * 4)
    for words in ("ps --api-key mine", "ps --api-key mine --url {url}"):
        stranger.heard.clear()
        assert "note:" not in omlx(words, stranger.url).stderr
        assert "Bearer mine" in stranger.heard[0] and "given" * 4 in stranger.heard[0]


def test_where_nobody_listens_nothing_is_noted(stranger: Stranger) -> None:
    assert "note:" not in omlx("ps --set server.port=1").stderr


def test_a_name_leads_to_the_address_that_is_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    def addresses(host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        rows = {"both": ["::1", "127.0.0.1"], "127.0.0.1": ["127.0.0.1"], "[::1]": ["::1"]}
        return [(0, 0, 0, "", (address, port)) for address in rows[host]]

    monkeypatch.setattr(socket, "getaddrinfo", addresses)
    with announcing("http://127.0.0.1:7"):
        assert trusted_url("http://both:7/base") == "http://127.0.0.1:7/base"
        assert trusted_url("http://127.0.0.1:7") == "http://127.0.0.1:7"
        assert trusted_url("https://127.0.0.1:7") == trusted_url("http://127.0.0.1:8") == ""
    with announcing("http://[::1]:7"):
        assert trusted_url("http://both:7") == "http://both:7"
        assert urlsplit(trusted_url("http://both:7")).port == 7


def test_a_socket_is_known_by_its_path(home: Path) -> None:
    with announcing(f"unix:{home}/omlx.sock"):
        assert trusted_url("unix:omlx.sock") == f"unix:{home}/omlx.sock"
        assert trusted_url("unix:other.sock") == ""
