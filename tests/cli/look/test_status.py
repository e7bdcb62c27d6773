"""`status` against the real server and against nobody."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from typer.testing import CliRunner, Result

from omlx_server.cli.app import app
from omlx_server.cli.look.status import _report_lines, percent, run, samples_of
from tests.api.conftest import CHATML
from tests.api.harness import ADMIN_TOKEN, ServerProcess, serving, wait_for
from tests.service.degraded_server import degraded, free_port
from tests.service.degraded_server import wait_for as wait_until_it_answers
from tests.text import makers
from tests.tiny_models import save_tiny

runner = CliRunner()
NOBODY = "http://127.0.0.1:1"
KEY = "sk-hunter2"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    models = tmp_path_factory.mktemp("models")
    vocab = makers.FAMILIES["byte_level"]().get_vocab_size()
    save_tiny(makers.save(models / "tiny", "byte_level", CHATML), "llama", vocab_size=vocab)
    sets = (f"models.dirs={models}", "memory.activation_reserve=64MB", f"auth.api_keys={KEY}")
    with serving("tiny", tmp_path_factory.mktemp("tiny"), *sets) as server:
        server.post(server.body("word " * 100, max_tokens=2), authorization=f"Bearer {KEY}")
        yield server


# --- status --------------------------------------------------------------------------------------


def status(*arguments: str) -> Result:
    return runner.invoke(app, ["status", *arguments])


def test_status_tells_models_load_memory_and_cache(tiny: ServerProcess) -> None:
    result = runner.invoke(app, ["status", "--json", "--url", tiny.url, "--api-key", KEY])
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert (found["url"], found["ready"], found["models"]) == (tiny.url, True, ["tiny"])
    assert [(e["model"], e["state"]) for e in found["engines"]] == [("tiny", "ready")]
    assert 0 < found["memory"]["weights"] < found["memory"]["limit"]
    assert found["cache"]["hot"]["blocks"] > 0
    assert 0 < found["cache"]["hot"]["bytes"] <= found["cache"]["hot"]["budget_bytes"]
    assert list(found["cache"]) == ["hot", "cold"]
    text = runner.invoke(app, ["status", "--url", f"{tiny.url}/v1", "--api-key", KEY]).stdout
    words = [line.split()[0] for line in text.splitlines()]
    told = [word for word in words if word != "drafts"]  # it drafts where that pays
    parts = ["models", "load", "chunks", "memory", "cache", "cache", "written", "hits"]
    assert told == [f"{tiny.url}:", *parts]
    assert "written 0 B of 100.0 GB today, 0 B since the start" in text
    assert found["cache"]["cold"]["daily_writes_bytes"] == 100 * 10**9
    [engine] = found["engines"]
    assert 64 <= engine["chunk_tokens"] <= engine["chunk_tokens_alone"] <= 2048
    assert f"chunks  tiny: {engine['chunk_tokens']} tokens" in text
    assert "load    tiny: 0 running, 0 prefilling, 0 waiting (ready)" in text


@pytest.mark.usefixtures("home")
def test_status_at_a_terminal_prints_a_link_that_signs_in(
    tiny: ServerProcess, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def link(token: str = ADMIN_TOKEN, url: str = "") -> str:
        monkeypatch.setenv("OMLX_ADMIN_TOKEN", token)
        port = f"server.port={urlsplit(tiny.url).port}"
        run(as_json=False, url=url, api_key=KEY, config=None, sets=[] if url else [port])
        return capsys.readouterr().out.splitlines()[-1]

    assert not link().startswith("page")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    page, _, code = link().partition("#in=")
    assert page == f"page    {tiny.url}/"
    answer = tiny.http.post(f"{tiny.url}/sign-in", json={"code": code})
    assert answer.json() == {"key": KEY, "token": ADMIN_TOKEN}
    assert link(token="another-token-of-16") == link(url=tiny.url) == page


def test_status_without_the_key_tells_what_is_open_to_all(tiny: ServerProcess) -> None:
    result = runner.invoke(app, ["status", "--json", "--url", tiny.url])
    found = json.loads(result.stdout)
    assert (result.exit_code, found["ready"], found["models"]) == (0, True, [])
    assert "cache" not in found
    assert (found["engines"], found["memory"], found["config"]) == ([], None, None)
    assert "a valid API key is needed" in found["problem"]
    told = status("--url", tiny.url).stdout
    assert "problem a valid API key" in told and "OMLX_API_KEY" in told


def test_status_tells_what_of_the_config_is_not_in_force(tiny: ServerProcess) -> None:
    asks = ("--url", tiny.url, "--api-key", KEY)

    def says(text: str, line: str) -> dict[str, Any]:
        tiny.config.write_text(text)
        wait_for(lambda: line in status(*asks).stdout)
        found: dict[str, Any] = json.loads(status(*asks, "--json").stdout)["config"]
        return found

    assert "config" not in status(*asks).stdout
    waiting = ["server.header_timeout_seconds", "server.write_timeout_seconds"]
    text = "[server]\nwrite_timeout_seconds = 7\nheader_timeout_seconds = 7\n"
    found = says(text, f"config  needs a restart: {', '.join(waiting)}\n")
    assert found == {"problem": None, "needs_restart": waiting}
    found = says("[server]\nprot = 1\n", "config  what has changed is not in force: unknown key")
    assert found["problem"].startswith("unknown key server.prot")
    tiny.config.write_text("")
    wait_for(lambda: "config" not in status(*asks).stdout)


def test_status_of_a_server_with_a_wrong_config_says_why(home: Path) -> None:
    port, config = free_port(), home / "c.toml"
    config.write_text(f"[server]\nport = {port}\nprot = 1\n")
    url = f"http://127.0.0.1:{port}"
    with degraded(config):
        wait_until_it_answers(port, "/health", 503)
        result = status("--url", url)
        assert result.exit_code == 1
        ready, problem = result.stdout.splitlines()
        assert ready == f"{url}: not ready"
        assert problem.startswith("problem unknown key server.prot (file ")
        found = json.loads(status("--json", "--url", url).stdout)
    assert problem == f"problem {found['problem']}"


def test_all_prompt_tokens_are_those_of_the_answers(tiny: ServerProcess) -> None:
    """The last one of each is never looked up, and is one of them."""
    body, key = tiny.body("word " * 100, max_tokens=2), f"Bearer {KEY}"
    answers = [tiny.post(body, authorization=key).json()["usage"] for _ in range(8)]
    cached = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in answers)
    found = json.loads(status("--json", "--url", tiny.url, "--api-key", KEY).stdout)
    assert found["hit_ratio"] == pytest.approx(cached / (9 * answers[0]["prompt_tokens"]))


@pytest.mark.parametrize(
    ("share", "text"),
    [(0, "0.0%"), (1e-6, "0.1%"), (0.5, "50.0%"), (0.99951, "99.9%"), (1, "100.0%")],
)
def test_a_share_is_rounded_to_all_or_nothing_only_where_it_is(share: float, text: str) -> None:
    assert percent(share) == text


def test_it_tells_how_many_drafts_were_right() -> None:
    found = {"url": "u", "ready": True, "version": "1", "problem": None, "config": None}
    found |= {"models": [], "engines": [], "memory": None}
    drafts = {"drafted": 12_000, "accepted": 9_000}
    assert list(_report_lines({**found, "drafts": drafts}))[1:] == [
        "drafts  75.0% of 12,000 drafted tokens were right"
    ]
    assert len(list(_report_lines({**found, "drafts": {"drafted": 0, "accepted": 0}}))) == 1


def test_status_of_nobody_is_one_line_and_code_1() -> None:
    result = runner.invoke(app, ["status", "--url", NOBODY])
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.splitlines()[0] == f"error: no server answers at {NOBODY}"


def test_status_of_a_stranger_is_not_ready(server_url: str) -> None:
    result = status("--url", server_url)
    assert result.exit_code == 1
    assert "not ready" in result.stdout


@pytest.mark.parametrize("url", ["localhost:8000", "http://", "http://[::1", "http://x:y"])
def test_what_is_no_url_is_a_usage_error(url: str) -> None:
    assert runner.invoke(app, ["status", "--url", url]).exit_code == 2


def test_samples_are_summed_by_tier() -> None:
    text = '# HELP a x\na{tier="hot",kind="b"} 1.0\na{kind="c",tier="hot"} 2\nb:c_total 5e3\nbad\n'
    assert samples_of(text) == {("a", "hot"): 3, ("b:c_total", ""): 5000}


def test_samples_of_several_models_are_summed_whatever_these_are_called() -> None:
    names = ("org/a", "b} 7", 'c\\"d"}', "e{,tier=")
    labels = [name.replace("\\", "\\\\").replace('"', '\\"') for name in names]
    text = "\n".join(f'vllm:x_total{{model_name="{label}",tier="hot"}} 2.0' for label in labels)
    assert samples_of(text) == {("vllm:x_total", "hot"): 8}
