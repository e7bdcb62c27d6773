"""`launch` as a command, and for real: what the agents get of a server with several models."""

import json
import os
import stat
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from omlx_server.cli.app import app
from omlx_server.cli.launch.clients import CLIENTS, LaunchTarget, choose_model
from omlx_server.errors import UsageError
from tests.api.conftest import CHATML
from tests.api.encoders.models import save_ranker
from tests.api.harness import UNPROBED, ServerProcess, serving
from tests.cli.home import CONFIG
from tests.models.directories import CHAT, make
from tests.sweeps import sweep
from tests.text import makers
from tests.tiny_models import save_tiny

NOBODY = "http://127.0.0.1:1"
KEY = "sk-hunter2"
CONTEXT = 65_536
LIMITS = {"context": CONTEXT, "output": CONTEXT // 4}
SHORT = 31_999


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Serves `tiny`, and has `short`, whose context is a token too short for agents, `bare`, which
    has no chat template, and `ranker`."""
    models = tmp_path_factory.mktemp("models")
    vocab = makers.FAMILIES["byte_level"]().get_vocab_size()
    for name, template, context in (
        ("tiny", CHATML, CONTEXT),
        ("short", CHATML, SHORT),
        ("bare", None, CONTEXT),
    ):
        path = makers.save(models / name, "byte_level", template)
        save_tiny(path, "llama", vocab_size=vocab, max_position_embeddings=context)
    save_ranker(models / "ranker")
    sets = (f"models.dirs={models}", "models.use_hf_cache=false", UNPROBED, f"auth.api_keys={KEY}")
    with serving("tiny", tmp_path_factory.mktemp("tiny"), *sets) as server:
        yield server


FAKE = """#!{python}
import json, os, sys
print(json.dumps({{"arguments": sys.argv[1:], "environ": dict(os.environ)}}))
"""


def program(
    home: Path, *arguments: str, path: str = "", **environ: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "omlx_server", "launch", *arguments],
        cwd=home,
        env={
            "PATH": path,
            "HOME": str(home),
            "PYTHONPATH": str(Path(__file__).parents[3]),
            **environ,
        },
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.fixture
def clients(home: Path) -> str:
    """A PATH with clients that say how they were called."""
    place = home / "bin"
    place.mkdir()
    for name in CLIENTS:
        file = place / name
        file.write_text(FAKE.format(python=sys.executable))
        file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return str(place)


def invoke(server: ServerProcess, *arguments: str) -> Result:
    """`launch` in this process, where it does not become the agent."""
    asks = ["launch", *arguments, "--url", server.url]
    return CliRunner().invoke(app, asks, env={"OMLX_API_KEY": KEY})


def launched(home: Path, clients: str, *arguments: str, **environ: str) -> dict[str, Any]:
    done = program(home, *arguments, path=clients, **environ)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_claude_is_pointed_here_and_nowhere_else(
    tiny: ServerProcess, home: Path, clients: str
) -> None:
    found = launched(
        home,
        clients,
        *("claude", "--url", tiny.url, "--", "-p", "hi there"),
        OMLX_API_KEY=KEY,
        ANTHROPIC_API_KEY="theirs",
        CLAUDE_CODE_USE_BEDROCK="1",
    )
    environ = found["environ"]
    assert found["arguments"] == ["-p", "hi there"]
    assert environ["ANTHROPIC_BASE_URL"] == tiny.url
    assert environ["ANTHROPIC_AUTH_TOKEN"] == KEY
    assert environ["ANTHROPIC_MODEL"] == environ["ANTHROPIC_DEFAULT_HAIKU_MODEL"] == "tiny"
    assert "ANTHROPIC_API_KEY" not in environ
    assert "CLAUDE_CODE_USE_BEDROCK" not in environ
    assert environ["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] == str(CONTEXT)
    assert environ["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] == str(CONTEXT // 4)


def test_codex_gets_a_provider_by_flags(tiny: ServerProcess, home: Path, clients: str) -> None:
    found = launched(home, clients, "codex", "--url", tiny.url, "--", "exec", OMLX_API_KEY=KEY)
    *flags, last = found["arguments"]
    assert last == "exec"
    assert flags[::2] == ["-c"] * (len(flags) // 2)
    told = tomllib.loads("\n".join(flags[1::2]))
    assert (told["model_provider"], told["model"]) == ("omlx", "tiny")
    assert told["model_context_window"] == CONTEXT
    assert told["model_auto_compact_token_limit"] == CONTEXT - CONTEXT // 4
    provider = told["model_providers"]["omlx"]
    assert provider["base_url"] == f"{tiny.url}/v1"
    assert provider["wire_api"] == "responses"
    assert found["environ"][provider["env_key"]] == KEY


def test_opencode_and_aider(tiny: ServerProcess, home: Path, clients: str) -> None:
    found = launched(home, clients, "opencode", "--url", tiny.url, OMLX_API_KEY=KEY)
    told = json.loads(found["environ"]["OPENCODE_CONFIG_CONTENT"])
    assert told["model"] == "omlx/tiny"
    assert told["provider"]["omlx"]["models"] == {"tiny": {"name": "tiny", "limit": LIMITS}}
    assert told["provider"]["omlx"]["options"]["baseURL"] == f"{tiny.url}/v1"
    assert KEY not in found["environ"]["OPENCODE_CONFIG_CONTENT"]
    assert found["environ"]["OMLX_API_KEY"] == KEY
    cache = {"XDG_CACHE_HOME": str(home / "cache")}
    found = launched(home, clients, "aider", "--url", tiny.url, OMLX_API_KEY=KEY, **cache)
    assert found["environ"]["OPENAI_API_BASE"] == f"{tiny.url}/v1"
    assert found["environ"]["OPENAI_API_KEY"] == KEY
    assert found["arguments"][:2] == ["--model", "openai/tiny"]
    limits = json.loads(Path(found["arguments"][-1]).read_text(encoding="utf-8"))["openai/tiny"]
    assert limits["max_input_tokens"] == CONTEXT
    assert limits["max_output_tokens"] == CONTEXT // 4
    assert found["arguments"][-1].startswith(f"{home}/cache/omlx_server/launch/")
    assert not (home / ".cache").exists()


@pytest.mark.parametrize(("client", "key"), sweep(CLIENTS, ["", KEY, "it's $HOME`"]))
def test_what_is_printed_does_the_same_and_shows_no_key(
    home: Path, clients: str, client: str, key: str
) -> None:
    environ = {"OMLX_API_KEY": key} if key else {}
    url = ("--url", NOBODY, "--model", "a b/$HOME")
    printed = program(home, client, "--print", *url, "--", "say 'hi'", **environ)
    assert printed.returncode == 0, printed.stderr
    assert not key or key not in printed.stdout
    ran = subprocess.run(
        ["/bin/sh", "-c", printed.stdout],
        env={"PATH": f"{clients}:/usr/bin:/bin", "ANTHROPIC_API_KEY": "theirs", **environ},
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(ran.stdout)
    assert found["arguments"][-1] == "say 'hi'"
    values = [*found["environ"].values(), *found["arguments"]]
    assert any("a b/$HOME" in value for value in values)
    assert any(NOBODY in value for value in values)
    assert (key or "none-needed") in found["environ"].values()
    assert client != "claude" or "ANTHROPIC_API_KEY" not in found["environ"]


def test_launch_says_in_a_line_what_is_missing(tiny: ServerProcess, home: Path) -> None:
    for arguments, code, words in (
        (("claude", "--url", tiny.url), 2, "claude is not on the PATH\nhint: install it: npm"),
        (("claude", "--url", NOBODY), 1, "no server answers at"),
        (("cloude", "--url", tiny.url), 2, "cloude is not known\nhint: known are claude, codex"),
    ):
        done = program(home, *arguments, path=os.defpath, OMLX_API_KEY=KEY)
        assert (done.returncode, done.stdout) == (code, "")
        assert words in done.stderr
        assert len(done.stderr.splitlines()) == 2


def test_a_model_that_is_not_served_is_refused(tiny: ServerProcess, home: Path) -> None:
    done = invoke(tiny, "aider", "--model", "other")
    assert done.exit_code == 2
    assert "does not serve other" in done.stderr


@pytest.mark.parametrize("key", ["", "wrong"])
def test_without_the_right_key_no_agent_is_started(tiny: ServerProcess, key: str) -> None:
    asks = ["launch", "codex", "--url", tiny.url]
    done = CliRunner().invoke(app, asks, env={"OMLX_API_KEY": key})
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("error: the server wants an API key\nhint: ")


def test_our_own_key_goes_to_our_own_server_only(home: Path, clients: str) -> None:
    (home / CONFIG).write_text(f'[auth]\napi_keys = ["{KEY}"]\n[server]\nport = 1\n')
    own = program(home, "aider", "--print")
    assert '"$OMLX_API_KEY"' in own.stdout
    other = program(home, "aider", "--print", "--url", NOBODY)
    assert "none-needed" in other.stdout
    assert KEY not in own.stdout + other.stdout
    unknown = "note: the size of the context of starter is not known, so it is left out\n"
    key = "note: the key stands in auth.api_keys; the shell needs it in OMLX_API_KEY\n"
    assert own.stderr == unknown + key
    assert other.stderr == unknown


# --- The context, and models that can't chat -----------------------------------------------------


@pytest.mark.parametrize("client", CLIENTS)
def test_where_no_context_is_known_the_agent_keeps_its_own(client: str) -> None:
    known = CLIENTS[client](LaunchTarget(NOBODY, "m", context=CONTEXT))
    unknown = CLIENTS[client](LaunchTarget(NOBODY, "m"))
    assert str(CONTEXT) in f"{known.command}{known.environ}{known.files}"
    said = f"{unknown.command}{unknown.environ}".lower()
    assert not [word for word in ("context", "limit", "compact", "metadata") if word in said]
    assert not unknown.files


def test_an_answer_is_a_quarter_of_the_context_or_what_agents_ask_for_at_most() -> None:
    outputs = {
        context: LaunchTarget(NOBODY, "m", context=context).output for context in (32_768, 1 << 20)
    }
    assert outputs == {32_768: 8192, 1 << 20: 32_000}


def test_a_short_context_is_one_line_of_warning(
    tiny: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMLX_MEMORY__LIMIT", "12GB")
    assert invoke(tiny, "codex", "--print").stderr == ""
    done = invoke(tiny, "codex", "--print", "--model", "short")
    assert done.exit_code == 0
    assert done.stderr == (
        "warning: short has a context of 31,999 tokens, and codex needs 32,000 or more; "
        "`omlx-server up qwen3.5-9b` serves one with 262,144\n"
    )
    assert "claude needs 48,000" in invoke(tiny, "claude", "--print", "--model", "short").stderr
    assert done.stdout.startswith("env OMLX_API_KEY=")


@pytest.mark.parametrize(
    ("model", "why"), [("ranker", "it embeds or ranks texts"), ("bare", "it has no chat template")]
)
def test_a_model_that_can_not_chat_is_refused(tiny: ServerProcess, model: str, why: str) -> None:
    done = invoke(tiny, "opencode", "--model", model)
    assert (done.exit_code, done.stdout) == (2, "")
    error, hint = done.stderr.splitlines()
    assert error == f"error: {model} can't chat: {why}"
    assert hint.startswith("hint: take another with --model: ") and "tiny" in hint


def test_the_model_is_the_named_one_or_else_the_first_that_chats() -> None:
    ranker = {"architecture": {"output_modalities": ["rerank"]}}
    chatter = {"architecture": {"output_modalities": ["text"]}}
    assert choose_model(NOBODY, {"ranker": ranker, "chatter": chatter}, "") == "chatter"
    assert choose_model(NOBODY, {"of another server": {}}, "") == "of another server"
    assert choose_model(NOBODY, {"chatter": chatter}, "chatter:latest") == "chatter"
    adapted = {"chatter": chatter, "chatter:latest": chatter}
    assert choose_model(NOBODY, adapted, "chatter:latest") == "chatter:latest"
    with pytest.raises(UsageError, match="ranker can't chat: it embeds or ranks") as refused:
        choose_model(NOBODY, {"ranker": ranker}, "")
    assert refused.value.hint == "serve one that does: omlx-server serve MODEL"


def test_where_no_server_answers_the_files_of_the_model_tell_the_context(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMLX_MODELS__DIRS", str(home / "models"))
    make(home / "models" / "acme" / "short")
    make(home / "models" / "long", CHAT | {"max_position_embeddings": CONTEXT})
    make(home / "models" / "bert", {"architectures": ["BertModel"], "model_type": "bert"})
    (home / CONFIG).write_text(
        '[models]\ndefault = "usual"\naliases = { usual = "long" }\n'
        "[models.overrides.short]\ncontext_length = 1024\n"
    )
    for arguments, told, said in (
        (("opencode",), f'"limit": {json.dumps(LIMITS)}', ""),
        (("codex", "--model", "long"), f"model_context_window={CONTEXT}", ""),
        (("codex", "--model", "short"), "model_context_window=1024", "warning: short has a con"),
        (("codex", "--model", "none"), "model_provider", "note: the size of the context of none"),
    ):
        done = CliRunner().invoke(app, ["launch", *arguments, "--print", "--url", NOBODY])
        assert done.exit_code == 0 and told in done.stdout
        assert done.stderr.startswith(said) and bool(done.stderr) == bool(said)
    done = CliRunner().invoke(app, ["launch", "codex", "--print", "--model", "bert"])
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("error: bert can't chat: it embeds or ranks texts\nhint: ")


def test_a_file_that_can_not_be_written_is_one_line(tiny: ServerProcess, home: Path) -> None:
    (home / ".cache").touch()
    done = invoke(tiny, "aider", "--print")
    assert (done.exit_code, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: {home}/.cache/omlx_server/launch/aider-")
