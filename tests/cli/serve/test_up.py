"""`omlx-server up`, mostly with a small server that speaks the same API as a process of its own."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil
import pytest
import typer
from typer.testing import CliRunner

from omlx_server.cli.app import app
from omlx_server.cli.models import choice
from omlx_server.cli.serve import address_in_use, up
from omlx_server.cli.serve.address_in_use import Listener
from omlx_server.cli.serve.first_chat import ask_twice
from omlx_server.cli.server_client.http import running_server, server_at
from omlx_server.cli.shell import stdin
from omlx_server.cli.shell.options import memory_limit
from omlx_server.cli.talk.client import ChatClient, TimedAnswer
from omlx_server.errors import OmlxError, UsageError
from omlx_server.models.hub import hub
from omlx_server.models.locate import installed
from omlx_server.process import ports
from omlx_server.process.running import announcing, moved_ports
from omlx_server.settings import Settings, load
from tests.api.conftest import CHATML
from tests.cli.conftest import FAKE_SERVER
from tests.cli.paced_server import paced
from tests.models import fake_hub
from tests.models.directories import Places
from tests.text import makers
from tests.tiny_models import save_tiny

ROOT = Path(__file__).parents[3]
PROGRAM = (sys.executable, str(FAKE_SERVER))


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def start(
    model: str = "starter", *, port: str = "0", program: Sequence[str] = PROGRAM, **options: Any
) -> int:
    options = {"once": True, "demo": False, "config": None, "sets": []} | options
    return up.run(up.UpOptions(model=model, program=program, **options), port=port)


def port_of(url: str) -> str:
    return str(urlsplit(url).port)


# --- A server of its own -------------------------------------------------------------------------


def test_it_asks_twice_says_how_to_connect_and_ends_the_server(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert start() == 0
    out, err = capfd.readouterr()
    assert "> What is the capital of France?\nIt is Paris.\n[first token after" in out
    assert "> Name one famous building there.\n" in out
    assert "Of its 30 prompt tokens 20 came from the cache" in out
    url = out.split(" on ")[1].split(" ")[0]
    assert f"API:      {url}/v1  (any OpenAI client; model starter)" in out
    assert f"chat --url {url}\n" in out
    assert f"launch claude --url {url}\n" in out
    assert "Serving until" not in out
    assert err == "fake server: stopped\n"


def test_the_curl_line_can_be_typed(capfd: pytest.CaptureFixture[str], server_url: str) -> None:
    assert start("", port=port_of(server_url), once=False, program=("false",)) == 0
    line = next(x for x in capfd.readouterr().out.splitlines() if x.startswith("Try:"))
    program, _, url, _, header, _, body = shlex.split(line.removeprefix("Try:"))
    assert (program, header) == ("curl", "Content-Type: application/json")
    answer = httpx.post(url, content=body, trust_env=False)
    assert "Paris" in "".join(
        json.loads(row.removeprefix("data: "))["choices"][0]["delta"]["content"]
        for row in answer.text.splitlines()
        if '"content"' in row
    )


@pytest.mark.parametrize(
    ("limit", "advice"),
    [
        ("12GB", "`omlx-server up qwen3.5-9b` serves one with 262,144"),
        ("1GB", "serve a model with a longer one (omlx-server serve MODEL)"),
    ],
)
def test_a_context_too_short_for_agents_is_said_where_they_are_named(
    limit: str, advice: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FAKE_CONTEXT", "8192")
    monkeypatch.setenv("OMLX_MEMORY__LIMIT", limit)
    assert start() == 0
    *_, agents, warning, _ = re.findall(r"^\w+: .*", capfd.readouterr().out, re.MULTILINE)
    assert agents.startswith("Agents:")
    assert warning == (
        f"Warning:  starter has a context of 8,192 tokens, and agents need 32,000 or more; {advice}"
    )


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"FAKE_ANSWER": "It is Rome."}, "should name Paris"),
        ({"FAKE_ANSWER": ""}, "gave an empty answer"),
        ({"FAKE_DEAD": "1"}, "ended with code 7 before it was ready"),
        ({"FAKE_EXIT_CODE": "3"}, "ended with code 3"),
    ],
)
def test_what_goes_wrong_is_an_error(
    environ: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(OmlxError, match=message):
        start()


def test_a_server_that_was_asked_for_wrongly_has_said_why(
    capfd: pytest.CaptureFixture[str],
) -> None:
    program = (sys.executable, "-c", "import sys; sys.stderr.write('mine\\n'); sys.exit(2)")
    assert start("org/nonsense", program=program) == 2
    assert capfd.readouterr().err == "mine\n"


def test_a_long_start_is_explained_once(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(up, "_SILENT_SECONDS", 0)
    monkeypatch.setattr(up, "_POLL_SECONDS", 0)
    answers = iter([False, False, False, True])
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as server:
        assert up._wait_until_ready(lambda: next(answers), server)
    assert capfd.readouterr().out.count("The first start of a model") == 1


@pytest.mark.parametrize("model", ["nope", ""])
def test_a_model_that_is_none_is_told_before_anything_else(
    model: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OMLX_MODELS__DEFAULT", "nope")
    with paced() as other, pytest.raises(UsageError, match="There is no model 'nope'"):
        start(model, port=str(other.server_port))
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize(
    ("first", "second", "says"),
    [
        ((2.0, 0), (1.0, 0), ""),
        ((2.0, 0), (1.9, 20), "Of its 30 prompt tokens 20 came from the cache.\n"),
        ((2.0, 0), (0.5, 20), "its first token took 0.25 times as long as that of the first.\n"),
        ((0.0, 0), (0.5, 20), "Of its 30 prompt tokens 20 came from the cache.\n"),
    ],
)
def test_only_a_figure_that_is_one_is_told(
    first: tuple[float, int],
    second: tuple[float, int],
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    answers = iter(
        [TimedAnswer("Paris", at, at, 30, 5, cached_tokens=n) for at, n in (first, second)]
    )
    with ChatClient(server_at("http://127.0.0.1:9", "")) as client:
        monkeypatch.setattr(client, "ask", lambda *_, **__: next(answers))
        ask_twice(client, "starter")
    out = capfd.readouterr().out
    assert out.endswith(says) and ("The second request" in out) == bool(says)
    assert "tok/s" not in out, "five tokens have no speed"


def test_another_model_may_say_what_it_likes(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FAKE_ANSWER", "It is Rome.")
    monkeypatch.setattr(up, "_served_name", lambda served, wanted: wanted)
    assert start("mine/own") == 0
    assert "any OpenAI client; model mine/own" in capfd.readouterr().out


def test_the_child_is_given_what_the_user_said(tmp_path: Path) -> None:
    told, config = tmp_path / "told", tmp_path / "mine.toml"
    config.touch()
    code = f"import sys; open({str(told)!r}, 'w').write(repr(sys.argv[1:])); sys.exit(2)"
    start(
        "org/m", config=config, sets=["cache.enabled=false"], program=(sys.executable, "-c", code)
    )
    words = told.read_text()
    assert words.startswith("['serve', 'org/m', '--port', '")
    assert f"'--config', '{config}', '--set', 'cache.enabled=false'" in words
    assert words.endswith("'--until-stdin-ends', '--fallback', 'logging.level=warning']")


def test_a_key_is_used_and_never_shown(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FAKE_KEY", "very-secret")
    monkeypatch.setenv("FAKE_ANNOUNCES", "1")
    monkeypatch.setenv("OMLX_AUTH__API_KEYS", "very-secret")
    assert start() == 0
    out = capfd.readouterr().out
    assert "very-secret" not in out
    assert '-H "Authorization: Bearer $OMLX_API_KEY"' in out


# --- Who listens there already -------------------------------------------------------------------


@pytest.mark.parametrize(("model", "once"), [("", False), ("starter", True)])
def test_a_server_that_runs_is_used_and_left_alone(
    model: str, once: bool, server_url: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert start(model, port=port_of(server_url), once=once, program=("false",)) == 0
    out = capfd.readouterr().out
    assert out.startswith(f"A server runs already at {server_url}.\n")
    assert ("It is Paris." in out) == once
    assert f"API:      {server_url}/v1" in out
    assert httpx.get(f"{server_url}/v1/models", trust_env=False).is_success


def test_one_that_does_not_serve_the_model_keeps_its_port(
    server_url: str, capfd: pytest.CaptureFixture[str]
) -> None:
    port = int(port_of(server_url))
    start("org/mine", port=str(port), program=(sys.executable, "-c", "import sys; sys.exit(2)"))
    out = capfd.readouterr().out
    assert f"A server of starter has port {port}; taking " in out
    assert f"Starting org/mine on http://127.0.0.1:{port} " not in out


def test_the_port_of_another_program_is_passed_by(capfd: pytest.CaptureFixture[str]) -> None:
    with paced() as other:
        assert start(port=str(other.server_port)) == 0
    out = capfd.readouterr().out
    assert f"Another program has port {other.server_port}; taking " in out
    assert f":{other.server_port} " not in out


def test_a_server_that_has_moved_is_found_until_its_up_ends(
    server_url: str, home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    port = int(port_of(server_url))
    with paced() as other:
        taken = other.server_port
        settings = settings_with(port=str(taken))
        assert running_server(settings).url == other.url
        with announcing(f"{taken}-{port}"):
            assert running_server(settings).url == server_url
            sets = ["--set", f"server.port={taken}"]
            assert f"{server_url}: " in CliRunner().invoke(app, ["status", *sets]).stdout
            config = home / "c.toml"
            config.write_text(f"[server]\nport = {taken}\n")
            words = ["chat", "--config", str(config), "--once", "hello"]
            assert CliRunner().invoke(app, words).stdout == "It is Paris.\n"
            words = ["launch", "claude", "--print", "--config", str(config)]
            assert server_url in CliRunner().invoke(app, words).stdout
            assert start("starter", port=str(taken), program=("false",)) == 0
            assert f"A server runs already at {server_url}." in capfd.readouterr().out
        assert running_server(settings).url == other.url
        trace = home / f".local/state/omlx_server/running/{taken}-{port}"
        trace.touch()  # of a killed one
        assert running_server(settings).url == other.url


def test_a_server_at_the_configured_port_goes_before_one_that_has_moved(server_url: str) -> None:
    port = port_of(server_url)
    with announcing(f"{port}-9"):
        assert running_server(settings_with(port=port)).url == server_url


def test_without_a_place_for_traces_a_server_moves_all_the_same(home: Path) -> None:
    (home / ".local").touch()
    with announcing("8000-8001"):
        assert moved_ports(8000) == []


def test_doors() -> None:
    with paced() as other:
        taken = settings_with(port=str(other.server_port))
        assert address_in_use.find_address(taken).listener is Listener.OTHER
        free = address_in_use.next_free(taken)
        assert free.port > other.server_port
        assert free.url == f"http://127.0.0.1:{free.port}"
    any_port = address_in_use.find_address(settings_with(port="0"))
    assert any_port.port > 0
    assert any_port.listener is Listener.NOBODY


def test_when_no_port_is_left_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "is_free", lambda host, port: False)
    with pytest.raises(UsageError, match="no port from 8001 on is free"):
        address_in_use.next_free(settings_with())


def settings_with(**server: str) -> Settings:
    return load(None, {f"server.{key}": value for key, value in server.items()}).settings


# --- Which model ---------------------------------------------------------------------------------


def make_model(path: Path, age: int, architecture: str = "LlamaForCausalLM", size: int = 1) -> None:
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps({"architectures": [architecture]}))
    with (path / "model.safetensors").open("wb") as file:
        file.truncate(size)
    os.utime(path, (1e9 - age, 1e9 - age))


def test_the_newest_model_that_chats_and_fits(tmp_path: Path) -> None:
    make_model(tmp_path / "old", age=9)
    make_model(tmp_path / "org" / "new", age=5)
    make_model(tmp_path / "huge", age=1, size=10_000_000_000)
    make_model(tmp_path / "tight", age=3, size=3_000_000_000)
    make_model(tmp_path / "embeds", age=2, architecture="BertModel")
    make_model(tmp_path / "SmolLM2-135M-Instruct-f32", age=0)
    here = choice.those_that_fit(installed(Places([tmp_path])), 6_000_000_000)
    assert [model.names[0] for model in here] == ["org/new", "old", "tight"]
    assert choice.those_that_fit([], 5_000) == {}


@pytest.fixture
def of_others(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without models of its own, and with two of LM Studio, the small one newer."""
    monkeypatch.setenv("OMLX_MODELS__USE_HF_CACHE", "false")
    monkeypatch.setenv("OMLX_MEMORY__LIMIT", "6GB")
    studio = home / ".lmstudio" / "models" / "acme"
    make_model(studio / "small", age=1)
    make_model(studio / "tight", age=0, size=3_000_000_000)
    make_model(studio / "huge", age=0, size=10_000_000_000)
    return studio


@pytest.mark.parametrize(("typed", "name"), [("\n", "acme/small"), ("2\n", "acme/tight")])
def test_models_of_other_programs_are_offered_before_a_download(
    typed: str,
    name: str,
    of_others: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(stdin, "is_terminal", lambda: True)
    monkeypatch.setattr(sys, "stdin", StringIO(typed))
    assert choice.choose(load().settings) == choice.Choice(name, "kept by LM Studio")
    out, err = capfd.readouterr()
    assert out.splitlines()[:4] == [
        "Models of other programs, which are served as they are:",
        "   1  acme/small  LM Studio    1 byte  fits",
        "   2  acme/tight  LM Studio    3.0 GB  tight",
        "`omlx-server search` lists others to download.",
    ]
    assert "Which one? [1]:" in err


def test_where_nothing_is_to_choose_nothing_is_asked(
    of_others: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def chosen() -> str:
        return choice.choose(load().settings).name

    assert chosen() == "acme/small", "nobody can answer"
    monkeypatch.setattr(stdin, "is_terminal", lambda: True)
    shutil.rmtree(of_others / "small")
    assert chosen() == "acme/tight", "it is the only one"
    make_model(home / ".cache" / "omlx_server" / "models" / "mine", age=9)
    assert chosen() == "mine"


def test_the_default_goes_first_and_the_starter_last(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMLX_MODELS__USE_HF_CACHE", "false")
    assert choice.choose(load().settings).name == "starter"
    make_model(home / ".cache" / "omlx_server" / "models" / "mine", age=3)
    assert choice.choose(load().settings).name == "mine"
    monkeypatch.setenv("OMLX_MODELS__DEFAULT", "other")
    assert choice.choose(load().settings).name == "other"


def test_the_memory_follows_the_limit() -> None:
    settings = load(None, {"memory.limit": "10GB"}).settings
    assert memory_limit(settings) == 10**10
    assert 0 < memory_limit(load().settings) < psutil.virtual_memory().total


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The questions that were asked on a terminal with nothing here; an empty answer means yes."""
    questions: list[str] = []

    def prompt(question: str, default: bool, **_: object) -> bool:
        questions.append(question)
        return default

    monkeypatch.setenv("OMLX_MODELS__USE_HF_CACHE", "false")
    monkeypatch.setenv("OMLX_MEMORY__LIMIT", "12GB")
    monkeypatch.setattr(stdin, "is_terminal", lambda: True)
    monkeypatch.setattr(typer, "confirm", prompt)
    return questions


@pytest.fixture
def hub_with_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with fake_hub.serve("mlx-community/Qwen3.5-9B-MLX-4bit", {}) as (address, _):
        monkeypatch.setattr(hub, "HUB", hub.Hub(tmp_path / "hub", address))
        yield


@pytest.mark.usefixtures("hub_with_best")
def test_an_empty_machine_is_offered_the_best_that_fits(
    asked: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    assert choice.choose(load().settings).name == "qwen3.5-9b"
    assert asked == ["Download about 6.0 GB and serve it?"]
    said = capfd.readouterr().out
    assert "qwen3.5-9b fits this memory with 32k tokens of context (tools, thinking" in said


@pytest.mark.usefixtures("asked", "hub_with_best")
def test_who_says_no_gets_the_starter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(typer, "confirm", lambda *_, **__: False)
    assert choice.choose(load().settings).name == "starter"


@pytest.mark.parametrize(
    ("limit", "why"), [("12GB", "qwen3.5-9b would fit, but: Could not"), ("1GB", "begin with")]
)
def test_without_a_network_or_room_nothing_is_asked(
    limit: str, why: str, asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMLX_MEMORY__LIMIT", limit)
    monkeypatch.setattr(hub, "HUB", hub.Hub(tmp_path / "hub", "http://127.0.0.1:9"))
    chosen = choice.choose(load().settings)
    assert (chosen.name, asked) == ("starter", []) and why in chosen.why


def test_where_nobody_can_answer_the_starter_is_taken(
    asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stdin, "is_terminal", lambda: False)
    chosen = choice.choose(load().settings)
    assert (chosen.name, asked) == ("starter", [])
    assert "`omlx-server up qwen3.5-9b`" in chosen.why


@pytest.mark.parametrize(
    ("served", "wanted", "name"),
    [
        (["starter", "SmolLM2"], "starter", "starter"),
        (["other", "mine"], "./models/mine", "mine"),
        (["other"], "alias", "other"),
        ([], "alias", "alias"),
    ],
)
def test_the_name_to_ask_for(served: list[str], wanted: str, name: str) -> None:
    assert up._served_name(served, wanted) == name


# --- As a process --------------------------------------------------------------------------------

SERVE_ON = """
import dataclasses, sys
from omlx_server.cli.serve import up
from omlx_server.cli.app import main
run, (arguments, *program) = up.run, sys.argv[1:]
up.run = lambda options, port: run(dataclasses.replace(options, program=program), port=port)
sys.argv = ["omlx-server", *arguments.split()]
main()
"""


@contextmanager
def process(arguments: str, *program: str) -> Iterator["subprocess.Popen[str]"]:
    with subprocess.Popen(
        [sys.executable, "-c", SERVE_ON, arguments, *program],
        cwd=ROOT,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    ) as running:
        try:
            yield running
        finally:
            running.kill()


def read_until(running: "subprocess.Popen[str]", text: str) -> str:
    assert running.stdout
    lines = []
    for line in running.stdout:
        lines.append(line)
        if text in line:
            break
    return "".join(lines)


@pytest.mark.parametrize(
    ("demo", "number"), [("", signal.SIGINT), (" --demo", signal.SIGTERM), ("", signal.SIGHUP)]
)
def test_it_serves_until_it_is_told_to_end(demo: str, number: signal.Signals) -> None:
    with process(f"up starter --port 0{demo}", *PROGRAM) as running:
        out = read_until(running, "Serving until Ctrl-C")
        assert "Serving until Ctrl-C" in out
        assert ("It is Paris." in out) == bool(demo)
        assert running.poll() is None
        # As a terminal does: to the whole group. The server must hear of it from us alone.
        os.killpg(running.pid, number)
        assert running.wait(30) == 0
        assert running.stderr
        assert running.stderr.read() == "fake server: stopped\n"


def test_what_its_output_can_not_encode_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_ANSWER", "Paris \u2013 the capital.")
    monkeypatch.setenv("PYTHONIOENCODING", "latin-1")
    with process("up starter --port 0 --once", *PROGRAM) as running:
        out, err = running.communicate(timeout=30)
    assert (running.returncode, err) == (0, "fake server: stopped\n")
    assert "\nParis \\u2013 the capital.\n" in out


NEVER_READY = "import sys, time; sys.stderr.write('begun\\n'); sys.stderr.flush(); time.sleep(60)"


def test_an_interrupt_before_it_is_ready_ends_both_quietly() -> None:
    with process("up starter --port 0", sys.executable, "-c", NEVER_READY) as running:
        assert running.stderr
        assert running.stderr.readline() == "begun\n"
        started = time.monotonic()
        os.killpg(running.pid, signal.SIGINT)
        assert running.wait(30) == 130
        assert running.stderr.read() == ""
        assert time.monotonic() - started < 10


def test_a_real_server_answers(tmp_path: Path) -> None:
    vocab = makers.FAMILIES["byte_level"]().get_vocab_size()
    model = makers.save(tmp_path / "models" / "tiny", "byte_level", CHATML)
    save_tiny(model, "llama", vocab_size=vocab)
    sets = ["--set", "memory.activation_reserve=64MB", "--set", "cache.cold_min_free_disk=0"]
    done = subprocess.run(
        [sys.executable, "-m", "omlx_server", "up", str(model), "--once", "--port", "0", *sets],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert "any OpenAI client; model tiny" in done.stdout
    (cached,) = re.findall(r"prompt tokens (\d+) came from the cache", done.stdout)
    assert int(cached) > 0


def test_a_killed_up_takes_its_server_with_it(tmp_path: Path) -> None:
    vocab = makers.FAMILIES["byte_level"]().get_vocab_size()
    model = makers.save(tmp_path / "models" / "tiny", "byte_level", CHATML)
    save_tiny(model, "llama", vocab_size=vocab)
    sets = "--set memory.activation_reserve=64MB --set cache.hot_cache_only=true"
    with process(f"up {model} --port 0 {sets}", *up.PROGRAM) as running:
        out = read_until(running, "Serving until Ctrl-C")
        (url,) = re.findall(r"Starting .* on (\S+) \.\.\.", out)
        (server,) = psutil.Process(running.pid).children()
        assert httpx.get(f"{url}/health/ready", trust_env=False).is_success
        running.kill()
        server.wait(60)
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/health/ready", trust_env=False)


# --- scripts/quickstart --------------------------------------------------------------------------


def test_quickstart_is_a_call_of_it(tmp_path: Path) -> None:
    scripts = tmp_path / "scripts"
    scripts.mkdir()
    shutil.copy(ROOT / "scripts" / "quickstart", scripts)
    (scripts / "_env.sh").write_text("prepare() { VENV=fake; }\n")
    (tmp_path / "fake" / "bin").mkdir(parents=True)
    (tmp_path / "fake" / "bin" / "python").symlink_to("/bin/echo")

    def words(*arguments: str) -> list[str]:
        line = ["bash", str(scripts / "quickstart"), *arguments]
        return subprocess.check_output(line, cwd=tmp_path, text=True).split()

    start = ["-m", "omlx_server", "up"]
    assert words() == [*start, "starter", "--demo", "--once"]
    assert words("--port", "0") == [*start, "starter", "--demo", "--port", "0", "--once"]
    assert words("qwen3:4b") == [*start, "qwen3:4b", "--once"]
    assert CliRunner().invoke(app, [*words("--help")[2:], "--help"]).exit_code == 0
