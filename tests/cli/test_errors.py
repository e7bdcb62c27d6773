"""What a command says when it fails: the same as prose and as JSON, with the same exit code, and
never a key of ours to somebody else."""

import json
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from omlx_server.cli.app import app
from omlx_server.errors import OmlxError
from omlx_server.process.running import announcing
from tests.cli.answering_server import KEY, Server, handler_of, server
from tests.cli.program import break_commands, commands

__all__ = ["server"]
runner = CliRunner()
NOBODY = "http://127.0.0.1:1"
BROKEN = ("--set", "server.port=many")
JSON_COMMANDS = [
    (name, command)
    for name, command in commands()
    if any("--json" in p.opts for p in command.params)
]


def omlx(*arguments: str) -> Result:
    return runner.invoke(app, [*arguments])


# --- JSON ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (f"status --url {NOBODY}", 1),
        (f"bench --url {NOBODY}", 1),
        (f"ps --url {NOBODY}", 1),
        (f"load x --url {NOBODY}", 1),
        (f"unload x --url {NOBODY}", 1),
        (f"pin x --url {NOBODY}", 1),
        ("status --url nowhere", 2),
        ("list --set server.port=many", 2),
        ("show nothing", 2),
        ("pull nothing", 2),
        ("alias one nothing", 2),
        ("alias --remove nothing", 2),
        ("config show --set server.port=many", 2),
        ("config get server.prot", 2),
        ("config get models.overrides.a.ttl", 1),
        ("cache stats --set server.port=many", 2),
        ("cache export -o out", 2),
        ("cache import nowhere", 2),
    ],
)
def test_an_error_is_one_object_on_stdout(line: str, code: int, home: Path) -> None:
    prose = omlx(*line.split())
    assert (prose.exit_code, prose.stdout) == (code, "")
    found = omlx(*line.split(), "--json")
    assert (found.exit_code, found.stderr) == (code, "")
    said = json.loads(found.stdout)
    assert list(said) == ["error"]
    message, hint = said["error"]["message"], said["error"]["hint"]
    lines = [f"error: {message}", *([f"hint: {hint}"] if hint else [])]
    assert prose.stderr.splitlines() == lines


@pytest.mark.parametrize(("name", "command"), JSON_COMMANDS, ids=lambda x: str(x)[:40])
def test_every_command_with_json_fails_in_json(
    name: str, command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_commands(monkeypatch, OmlxError("it broke\nbadly", hint="mend it"))
    needed = [p for p in command.params if p.required]
    words = [w for p in needed for w in ([p.opts[0], "x"] if p.opts[0][0] == "-" else ["x"])]
    result = omlx(*name.split(), *words, "--json")
    assert (result.exit_code, result.stderr) == (1, "")
    assert json.loads(result.stdout) == {"error": {"message": "it broke\nbadly", "hint": "mend it"}}


def test_an_error_of_the_system_and_no_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    break_commands(monkeypatch, OSError(28, "No space left on device", "/some/file"))
    result = omlx("list", "--json")
    said = {"message": "/some/file: No space left on device", "hint": None}
    assert (result.exit_code, json.loads(result.stdout)) == (1, {"error": said})


def test_what_is_no_text_is_escaped() -> None:
    result = omlx("status", "--url", "\udcff", "--json")
    assert (result.exit_code, result.stderr) == (2, "")
    assert json.loads(result.stdout)["error"]["message"] == "\udcff is not a URL"
    assert "\\u00e9\\udcff is not a URL" in omlx("status", "--url", "é\udcff", "--json").stdout


def test_where_stdout_is_the_archive_errors_stand_on_stderr() -> None:
    result = omlx("cache", "export", "--prompt", "x", "-o", "-", "--json")
    assert (result.exit_code, result.stdout) == (1, "")
    error = json.loads(result.stderr)["error"]
    assert "nothing is stored in" in error["message"] and "/v1/cache/export" in error["hint"]


# --- Nobody answers ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    ["status", "ps", "load x", "unload x", "pin x", "chat --once hi", "launch claude", "bench"],
)
def test_that_nobody_answers_is_code_1_everywhere(command: str) -> None:
    result = omlx(*command.split(), "--url", NOBODY)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.splitlines() == [
        f"error: no server answers at {NOBODY}",
        "hint: start one with `omlx-server up`, or name another with --url",
    ]


def test_a_server_of_this_user_at_another_address_is_named() -> None:
    url = "http://127.0.0.1:8765"
    with announcing(url):
        result = omlx("status")
    assert result.exit_code == 1
    assert f"hint: yours runs at {url}: name it with --url" in result.stderr.splitlines()


# --- Keys ----------------------------------------------------------------------------------------

ASKING = ["status", "bench", "chat --once hi", "launch aider --print", "ps", "load big"]


@pytest.mark.parametrize("command", ASKING)
def test_the_key_of_our_config_goes_to_our_own_server_only(command: str, server: Server) -> None:
    omlx(*command.split())
    assert server.headers["authorization"] == f"Bearer {KEY}"
    server.headers.clear()
    omlx(*command.split(), "--url", server.url)
    assert server.headers
    assert "authorization" not in server.headers


@pytest.mark.parametrize("command", ASKING)
def test_a_key_that_is_given_goes_where_it_is_meant_to(
    command: str, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMLX_API_KEY", "given")
    for where in ((), ("--url", server.url)):
        server.headers.clear()
        omlx(*command.split(), *where)
        assert server.headers["authorization"] == "Bearer given"


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """What the environment names for the web."""
    known = Server()
    with ThreadingHTTPServer(("127.0.0.1", 0), handler_of(known)) as http:
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{http.server_port}")
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        yield known
        http.shutdown()
        thread.join()


@pytest.mark.parametrize("command", ["chat x --once hi", "bench --model x", "ps"])
def test_no_proxy_hears_what_goes_to_our_own_server(
    command: str, server: Server, proxy: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Another way to write 0.0.0.0, which leads here but is no loopback address.
    monkeypatch.setenv("OMLX_SERVER__HOST", "0")
    omlx(*command.split())
    assert server.headers["authorization"] == f"Bearer {KEY}"
    assert proxy.headers == {}


@pytest.mark.parametrize("key", ["sk-SECRET\r", "sk-SECRET\u20ac", "sk-SECRET ", "\udcffSECRET"])
def test_a_key_that_no_header_takes_is_refused_and_not_said(
    key: str, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMLX_API_KEY", key)
    for command in ASKING:
        result = omlx(*command.split())
        assert (result.exit_code, result.stdout) == (2, ""), command
        assert result.stderr.startswith("error: the API key can't travel"), command
        assert "SECRET" not in result.stderr
    assert server.headers == {}


@pytest.mark.parametrize("command", ["status", "bench", "ps", "load big", "chat --once hi"])
def test_a_path_that_no_request_takes_is_no_url(command: str, server: Server) -> None:
    end = "/\x01/" if command.startswith("chat") else "/\u00e9"
    result = omlx(*command.split(), "--url", server.url + end)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "is not a URL" in result.stderr
