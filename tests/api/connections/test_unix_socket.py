"""A server on a Unix socket instead of a port: real ones, and our own commands that ask them.
Without vLLM's names of metrics, too."""

import json
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from omlx_server.cli.app import app
from omlx_server.cli.server_client.http import server_at
from omlx_server.cli.talk.client import ChatClient
from tests.api.harness import ServerProcess, serving

SETS = ("memory.activation_reserve=64MB", "metrics.compat=")
runner = CliRunner()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In a directory that is not there yet."""
    return tmp_path_factory.mktemp("uds") / "run" / "s.sock"


@pytest.fixture(scope="module")
def server(
    tiny_models: Path, place: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """In place of one that was killed. At its end the socket's file is gone."""
    place.parent.mkdir(0o700)
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(place))
    sets = (f"models.dirs={tiny_models}", f"server.uds={place}", *SETS)
    with serving("org/tiny", tmp_path_factory.mktemp("uds"), *sets) as server:
        yield server
    assert list(place.parent.iterdir()) == []


@pytest.fixture(scope="module")
def http(server: ServerProcess, place: Path) -> Iterator[httpx.Client]:
    transport = httpx.HTTPTransport(uds=str(place))
    with httpx.Client(transport=transport, base_url="http://localhost", timeout=60) as client:
        yield client


def test_it_answers_there_and_nowhere_else(
    server: ServerProcess, http: httpx.Client, place: Path
) -> None:
    assert server.url == f"unix:{place}"
    messages = [{"role": "user", "content": "Hi"}]
    body = {"model": "org/tiny", "messages": messages, "max_tokens": 4, "ignore_eos": True}
    answer = http.post("/v1/chat/completions", json=body)
    assert answer.json()["usage"]["completion_tokens"] == 4
    assert http.get("/health/ready").status_code == 200
    assert "http://" not in server.log


def test_only_this_user_can_open_it(server: ServerProcess, place: Path) -> None:
    assert stat.S_IMODE(place.stat().st_mode) == 0o600


@pytest.mark.parametrize("host", ["localhost", "omlx", "evil.example", ""])
def test_it_may_be_called_by_any_name(http: httpx.Client, host: str) -> None:
    assert http.get("/v1/models", headers={"host": host}).status_code == 200


def test_a_page_of_a_stranger_may_not_ask_through_a_proxy(http: httpx.Client) -> None:
    page = {"origin": "http://evil.example"}
    assert http.get("/v1/models", headers=page).status_code == 403
    assert http.get("/v1/models", headers={"origin": "http://localhost"}).status_code == 200


def test_our_commands_reach_it(server: ServerProcess, place: Path) -> None:
    for words in (["--set", f"server.uds={place}"], ["--url", f"unix:{place}"]):
        result = runner.invoke(app, ["status", "--json", *words])
        assert result.exit_code == 0, result.output
        found = json.loads(result.stdout)
        assert (found["url"], found["models"][0]) == (f"unix:{place}", "org/tiny")


def test_one_can_talk_through_it(server: ServerProcess, place: Path) -> None:
    talk = ["chat", "--url", f"unix:{place}", "--once", "Hi"]
    result = runner.invoke(app, talk)
    assert result.exit_code == 0, result.output
    assert "first token after" in result.stderr
    with ChatClient(server_at(f"unix:{place}", "")) as client:
        assert client.is_ready()
        assert client.models()[0] == "org/tiny"


def test_agents_are_told_that_they_can_not(server: ServerProcess) -> None:
    result = runner.invoke(app, ["launch", "codex", "--print", "--url", server.url])
    assert result.exit_code == 2
    assert "can't reach a Unix socket" in result.stderr


def test_nobody_there_is_said_in_one_line(tmp_path: Path) -> None:
    result = runner.invoke(app, ["status", "--url", f"unix:{tmp_path}/none"])
    assert result.exit_code == 1
    assert f"no server answers at unix:{tmp_path}/none" in result.stderr


# httpcore does not close a Unix socket that it could not connect.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_nobody_to_talk_to_is_said_in_one_line(tmp_path: Path) -> None:
    result = runner.invoke(app, ["chat", "--once", "Hi", "--url", f"unix:{tmp_path}/none"])
    assert result.exit_code == 1
    assert "no server answers at" in result.stderr


def test_the_doctor_knows_our_own_server(server: ServerProcess, place: Path) -> None:
    result = runner.invoke(app, ["doctor", "--json", "--set", f"server.uds={place}"])
    rows = {row["what"]: row for row in json.loads(result.stdout)["findings"]}
    assert rows["socket"]["level"] == "ok" and "serves on" in rows["socket"]["says"]
    assert "port" not in rows


def test_a_second_server_is_refused(
    server: ServerProcess, tiny_models: Path, place: Path, tmp_path: Path
) -> None:
    sets = (f"models.dirs={tiny_models}", f"server.uds={place}")
    second = ServerProcess("org/tiny", tmp_path, sets)
    try:
        assert second.wait(60) == 2
        assert f"can't listen on the socket {place}: another server listens there" in second.log
        assert "Traceback" not in second.log
    finally:
        second.kill()
    assert place.exists()


def test_without_vllms_names_the_metrics_have_ours(http: httpx.Client) -> None:
    text = http.get("/metrics").text
    assert "vllm" not in text
    for name in (
        "omlx_num_requests_running",
        "omlx_kv_cache_usage_perc",
        "omlx_prefix_cache_queries_total",
        "omlx_time_to_first_token_seconds_bucket",
        "omlx_prompt_tokens_total",
        "omlx_request_success_total",
        "omlx_num_preemptions_total",
        "omlx_cache_bytes",
    ):
        assert f"\n{name}" in text, name


def test_status_finds_the_hits_under_either_name(server: ServerProcess) -> None:
    found = json.loads(runner.invoke(app, ["status", "--json", "--url", server.url]).stdout)
    assert "hit_ratio" in found and found["cache"]
