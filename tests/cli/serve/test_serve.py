"""`serve` hands the settings, a model name, a progress bar and a `ready` to the builder."""

import errno
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from http.server import ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from typer.testing import CliRunner

from omlx_server.cli.app import app
from omlx_server.cli.look import doctor
from omlx_server.cli.serve import address_in_use, serve
from omlx_server.cli.shell.progress import Lines
from omlx_server.process import server
from omlx_server.settings import Loaded, load
from tests.cli.json_handler import JsonHandler
from tests.cli.program import HEAVY, imports_of

runner = CliRunner()
ROOT = Path(__file__).parents[3]
# In the place of a library that the server needs, on a disk that takes its time.
SLOW = "import time\nprint('importing', flush=True)\ntime.sleep(120)\n"


class Build:
    """Stands in for the function of omlx_server.process.server that starts a server."""

    def __init__(self) -> None:
        self.loaded: Loaded | None = None
        self.model = ""

    def serve(
        self,
        loaded: Loaded,
        model: str,
        sock: socket.socket,
        *,
        progress: Any,
        ready: Callable[[str, str], None],
    ) -> int:
        self.loaded, self.model = loaded, model
        progress.update("download", 0, 100)
        progress.update("download", 100, 100)
        ready("http://127.0.0.1:1234", model)
        return 5


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch) -> Build:
    fake = Build()
    monkeypatch.setattr(serve, "prepare", lambda *_: None)
    monkeypatch.setattr(server, "serve", fake.serve)
    monkeypatch.setattr(server, "leave", lambda code: code)
    monkeypatch.setenv("OMLX_SERVER__PORT", "0")
    return fake


def test_it_tells_progress_then_ready_and_returns_the_exit_code(build: Build) -> None:
    result = runner.invoke(app, ["serve", "some/model"])
    assert result.exit_code == 5
    assert build.model == "some/model"
    assert result.stdout == (
        "omlx-server is ready: http://127.0.0.1:1234/v1 serves some/model (Ctrl-C ends it)\n"
    )
    assert result.stderr == "download: 0 %\ndownload: 100 %\n"


def test_the_progress_bar_is_gone_before_the_ready_line(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Bar(Lines):
        def close(self) -> None:
            sys.stdout.write("closed\n")

    monkeypatch.setattr(serve, "open_display", lambda: closing(Bar(sys.stderr)))
    lines = runner.invoke(app, ["serve"]).stdout.splitlines()
    assert lines[0] == "closed"
    assert lines[1].startswith("omlx-server is ready")


def test_the_model_is_named_by_hand_or_by_the_config_or_is_the_starter(build: Build) -> None:
    runner.invoke(app, ["serve"])
    assert build.model == "starter"
    runner.invoke(app, ["serve"], env={"OMLX_MODELS__DEFAULT": "org/mine"})
    assert build.model == "org/mine"
    runner.invoke(app, ["serve", "org/named"], env={"OMLX_MODELS__DEFAULT": "org/mine"})
    assert build.model == "org/named"
    runner.invoke(app, ["serve", "small"], env={"OMLX_MODELS__ALIASES": '{"small": "org/mine"}'})
    assert build.model == "org/mine"


def test_flags_win_over_set_and_set_over_the_environment(build: Build) -> None:
    arguments = ["serve", "--port", "0", "--set", "server.port=2", "--set", "server.host=127.0.0.2"]
    runner.invoke(app, arguments, env={"OMLX_SERVER__HOST": "localhost"})
    assert build.loaded
    assert build.loaded.settings.server.port == 0
    assert build.loaded.settings.server.host == "127.0.0.2"
    assert build.loaded.origins["server.port"] == "flag"


def test_models_beside_the_one_that_chats_have_flags(build: Build) -> None:
    runner.invoke(app, ["serve", "--embedding-model", "minilm", "--reranker", "org/judge"])
    assert build.loaded
    models = build.loaded.settings.models
    assert (models.embedding, models.reranker) == ("minilm", "org/judge")


def test_a_draft_model_has_a_flag_that_counts_for_every_model(build: Build) -> None:
    own = '{"a": {"speculation": {"draft_model": "", "mode": "ngram"}}}'
    drafted = ["serve", "--draft-model", "org/small"]
    runner.invoke(app, drafted, env={"OMLX_MODELS__OVERRIDES": own})
    assert build.loaded
    for names, mode in ((["a"], "ngram"), (["b"], "auto")):
        drafts = build.loaded.settings.speculation_of(names)
        assert (drafts.draft_model, drafts.mode) == ("org/small", mode)


def test_wrong_settings_end_it_before_anything_is_built(build: Build) -> None:
    result = runner.invoke(app, ["serve", "--host", "0.0.0.0"])
    assert result.exit_code == 2
    assert "open to other machines" in result.stderr
    assert build.loaded is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("nothing", "There is no model 'nothing'"),
        ("./nowhere", "nowhere does not exist"),
        ("starter --embedding-model nothing", "There is no model 'nothing'"),
        ("starter --draft-model nothing", "There is no model 'nothing'"),
        ("starter --adapter ./nowhere", "nowhere of an adapter"),
        (
            "starter --host 192.0.2.1 --set auth.api_keys=key-of-mine",
            "can't listen on 192.0.2.1 port 0",
        ),
        ("starter --port {taken}", "can't listen on 127.0.0.1 port {taken}"),
    ],
)
def test_what_can_be_known_is_said_before_mlx_is_imported(words: str, said: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        given = ["--port", "0", *words.format(taken=taken).split()]
        names, told = imports_of("serve", *given, code=2)
    assert not names & (HEAVY - {"rich"})
    assert said.format(taken=taken) in told and "hint: " in told


def test_a_model_is_fetched_before_mlx_is_imported_and_with_the_port_held(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
    held: list[int | None] = []

    class Hub(JsonHandler):
        def do_GET(self) -> None:
            with socket.socket() as rival, pytest.raises(OSError) as refused:
                rival.bind(("127.0.0.1", port))
            held.append(refused.value.errno)
            self.say(404, {})

        do_HEAD = do_GET

    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as hub:
        Thread(target=hub.serve_forever, args=(0.02,), daemon=True).start()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{hub.server_port}")
        monkeypatch.setenv("HF_HOME", str(home / "hf"))
        names, told = imports_of("serve", "who/knows", "--port", str(port), code=1)
        hub.shutdown()
    assert "mlx" not in names and "MLX" not in told
    assert "Could not download who/knows" in told
    assert set(held) == {errno.EADDRINUSE}


def test_the_same_port_is_proposed_by_all_commands(home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        settings = load(None, {"server.port": str(taken)}).settings
        free = address_in_use.next_free(settings).port
        _, told = imports_of("serve", "--port", str(taken), code=2)
        assert f"--port {free}; " in told and f"server.port {free}\n" in told
        assert doctor.fix_of_port("127.0.0.1", taken).endswith(f"server.port {free}")
    assert free > taken


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_while_it_starts_ends_it_in_order(number: int, code: int, home: Path) -> None:
    (home / "uvloop.py").write_text(SLOW)
    with subprocess.Popen(
        [sys.executable, "-m", "omlx_server", "serve", "--port", "0"],
        env=os.environ | {"PYTHONPATH": f"{home}{os.pathsep}{ROOT}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as starting:
        try:
            assert starting.stdout and starting.stdout.readline() == "importing\n"
            starting.send_signal(number)
            _, err = starting.communicate(timeout=60)
        finally:
            starting.kill()
    assert (starting.returncode, err) == (code, "")


def test_who_calls_it_has_its_own_signals_again(build: Build) -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        runner.invoke(app, ["serve", "--host", "0.0.0.0"])
        runner.invoke(app, ["serve"])
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)
