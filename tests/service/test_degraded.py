"""A wrong config: 503 with the reason over real HTTP, and answers once it is mended."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType

import httpx
import pytest

from omlx_server.api.own.degraded import DegradedApp
from omlx_server.errors import ConfigError
from omlx_server.settings.layers import Salvaged, salvage
from tests.api.harness import wait_for as wait_until
from tests.service.degraded_server import ROOT, ask, degraded, free_port, wait_for
from tests.service.made import save_small


def put(config: Path, text: str) -> None:
    """At once: half of a file, or none of it, is another config."""
    fresh = config.with_suffix(".new")
    fresh.write_text(text)
    fresh.replace(config)


def test_from_a_wrong_config_to_answers(tmp_path: Path) -> None:
    port, config = free_port(), tmp_path / "c.toml"
    save_small(tmp_path / "models" / "org" / "tiny")
    server = f"[server]\nport = {port}\n"
    good = f'{server}[models]\ndirs = ["{tmp_path}/models"]\ndefault = "org/tiny"\n'
    config.write_text(f"{server}prot = 1\n")
    log = tmp_path / "server.log"
    with degraded(config, ["--set", f"logging.file={log}"]) as process:
        text = wait_for(port, "/v1/models", 503)
        assert json.loads(text)["error"] == {
            "message": f"unknown key server.prot (file {config}) (did you mean server.port?)",
            "type": "service_unavailable_error",
            "param": None,
            "code": "misconfigured",
        }
        assert ask(port, "/health/live")[0] == 200
        for path in ("/", "/health", "/health/ready", "/v1/cache/pin", "/nothing?x=1"):
            assert ask(port, path)[0] == 503
        assert ask(port, "/v1/chat/completions", "POST", '{"model": "x"}')[0] == 503
        shape = json.loads(ask(port, "/v1/messages", "POST", "{}")[1])
        assert shape["type"] == "error", "Anthropic's clients have an envelope of their own"
        assert "server.prot" not in ask(port, "/", host="evil.example")[1]

        put(config, f"{server}host = 7\n")
        wait_for(port, "/v1/models", 503, "server.host: expected")
        process.send_signal(signal.SIGHUP)
        wait_until(lambda: log.read_text(encoding="utf-8").count("still wrong") > 1)
        config.unlink()
        process.send_signal(signal.SIGHUP)
        wait_for(port, "/v1/models", 503, "not found")
        put(config, good)
        wait_for(port, "/health/ready", 200)
        assert "org/tiny" in ask(port, "/v1/models")[1]
        assert process.poll() is None, "the same process serves now"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert "server.prot" in log.read_text(encoding="utf-8")
    assert "Traceback" not in log.read_text(encoding="utf-8") + (tmp_path / "out").read_text()


def test_a_model_that_is_not_there_is_told_too_and_a_signal_ends_it(tmp_path: Path) -> None:
    port, config = free_port(), tmp_path / "c.toml"
    config.write_text(
        f'[server]\nport = {port}\n[models]\ndirs = ["{tmp_path}/none"]\ndefault = "./gone"\n'
    )
    with degraded(config) as process:
        assert "gone" in wait_for(port, "/v1/models", 503)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def test_without_the_flag_it_ends_with_code_2(tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text("[server]\nprot = 1\n")
    done = subprocess.run(
        [sys.executable, "-m", "omlx_server", "serve", "--config", str(config)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: unknown key server.prot")


def test_a_wrong_flag_ends_it_all_the_same(tmp_path: Path) -> None:
    """No change of the file would mend it, and the manager's limit of starts holds."""
    config = tmp_path / "c.toml"
    config.touch()
    with degraded(config, ["--set", "nonsense"]) as process:
        assert process.wait(120) == 2


def test_it_needs_no_mlx() -> None:
    code = "import sys, omlx_server.process.degraded; sys.exit('mlx' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=120)


# --- What is told to whom ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("client", "host", "told"),
    [
        (("127.0.0.1", 1), b"localhost:8000", True),
        (("::1", 1), b"[::1]:8000", True),
        (("127.0.0.1", 1), b"evil.example", False),
        (("192.168.0.9", 1), b"localhost", False),
        (("192.168.0.9", 1), b"192.168.0.2:8000", False),
        (None, b"localhost", False),
        (("nonsense", 1), b"localhost", False),
    ],
)
def test_the_reason_stays_on_the_machine(
    client: tuple[str, int] | None, host: bytes, told: bool
) -> None:
    scope = {"type": "http", "path": "/x", "client": client, "headers": [(b"host", host)]}
    app = DegradedApp(ConfigError("the-reason"))
    assert ("the-reason" in str(app._response_for(scope).__dict__)) == told


# --- What can be saved of the settings -----------------------------------------------------------

DEFAULT = Salvaged("127.0.0.1", 8000, "")


@pytest.mark.parametrize(
    ("text", "saved"),
    [
        ('[server]\nhost = "::1"\nport = 5\nprot = 6\n', Salvaged("::1", 5, "")),
        ('[server]\nhost = 7\nport = 5\n[logging]\nfile = "/l"\n', Salvaged("127.0.0.1", 5, "/l")),
        ('[server]\nport = 70000\nhost = "a b"\n', DEFAULT),
        ("[server\n", DEFAULT),
        ("server = 1\nlogging = [2]\n", DEFAULT),
        ('[server]\nport = "5"\n', DEFAULT),
        ('[logging]\nfile = "~no-such-user-/x"\n', DEFAULT),
    ],
)
def test_what_is_right_is_saved(text: str, saved: Salvaged, tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text(text)
    assert salvage(config, {}, {}) == saved


def test_the_strongest_layer_that_is_right_wins(tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text("[server]\nport = 5\n")
    environ = {"OMLX_SERVER__PORT": "6", "OMLX_SERVER__HOST": "::1"}
    assert salvage(config, {"server.port": "7"}, environ) == Salvaged("::1", 7, "")
    assert salvage(config, {"server.port": "x"}, environ) == Salvaged("::1", 6, "")
    assert salvage(config, {}, {"OMLX_SERVER__PORT": "x"}) == Salvaged("127.0.0.1", 5, "")


def test_no_file_and_a_file_that_is_no_text(tmp_path: Path) -> None:
    none: MappingProxyType[str, str] = MappingProxyType({})
    assert salvage(None, {}, none) == DEFAULT
    assert salvage(tmp_path / "gone", {}, none) == DEFAULT
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    assert salvage(tmp_path / "bytes", {}, none) == DEFAULT


def test_a_socket_is_saved_as_a_port_is(tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text('[server]\nuds = "/run/file.sock"\nprot = 1\n')
    assert salvage(config, {}, {}).uds == "/run/file.sock"
    assert salvage(config, {}, {"OMLX_SERVER__UDS": "/run/env.sock"}).uds == "/run/env.sock"
    assert salvage(config, {"server.uds": "a\0b"}, {}).uds == "/run/file.sock"


def answered(http: httpx.Client, url: str) -> httpx.Response | None:
    """Its file is there a moment before anybody listens."""
    with suppress(httpx.ConnectError):
        return http.get(url, timeout=60)
    return None


# httpcore does not close a Unix socket that it could not connect.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_wrong_config_is_told_over_a_socket_too(tmp_path: Path) -> None:
    path, config = tmp_path / "s.sock", tmp_path / "c.toml"
    config.write_text(f'[server]\nuds = "{path}"\nprot = 1\n')
    transport = httpx.HTTPTransport(uds=str(path))
    with degraded(config) as server, httpx.Client(transport=transport) as http:
        answer = wait_until(partial(answered, http, "http://any/v1/models"))
        assert (answer.status_code, "unknown key server.prot" in answer.text) == (503, True)
        server.terminate()
        assert server.wait(60) == 0
        assert not path.exists()
