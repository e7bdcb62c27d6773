"""What a shell is told when the user presses Tab: quickly, and never an error."""

import json
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from omlx_server import settings
from omlx_server.cli.shell.complete import complete_keys, complete_models, possible_values
from omlx_server.cli.talk.commands import complete_clients
from omlx_server.models.locate import in_directories
from tests.cli.home import CONFIG
from tests.cli.program import HEAVY, LIST_IMPORTS

ROOT = Path(__file__).parents[2]


def complete(line: str, shell: str = "bash", **environ: str) -> subprocess.CompletedProcess[str]:
    """As the functions ask that `--show-completion` prints. The last word is the half-typed one."""
    words = {
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split(" ")) - 1),
        "_TYPER_COMPLETE_ARGS": line,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        "_OMLX_SERVER_COMPLETE": f"complete_{shell}",
    }
    return subprocess.run(
        [sys.executable, "-c", LIST_IMPORTS],
        cwd=ROOT,
        env=os.environ | words | environ,
        capture_output=True,
        text=True,
        timeout=60,
    )


def offered(line: str, **environ: str) -> list[str]:
    done = complete(line, **environ)
    assert done.stderr.splitlines()[:-1] in ([], [""])  # the last line is that of LIST_IMPORTS
    return done.stdout.split()


def make_model(path: Path) -> None:
    path.mkdir(parents=True)
    (path / "config.json").touch()


@pytest.fixture
def models(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    directory = home / ".cache" / "omlx_server" / "models"
    make_model(directory / "mine")
    make_model(directory / "org" / "theirs")
    make_model(directory / ".downloads" / "half")
    (directory / "empty").mkdir()
    hub = home / ".cache" / "huggingface" / "hub"
    make_model(hub / "models--mlx-community--Qwen3-0.6B" / "snapshots" / "abc")
    (hub / "models--mlx-community--nothing").mkdir()
    make_model(hub / "datasets--mlx-community--data" / "snapshots" / "abc")
    return directory


def test_models_that_are_here(models: Path) -> None:
    everything = ["starter", "mine", "org/theirs", "mlx-community/Qwen3-0.6B"]
    assert complete_models() == everything


def test_models_of_the_catalogue_have_the_names_that_a_server_knows(models: Path) -> None:
    make_model(models / "SmolLM2-135M-Instruct-f32")
    make_model(models / "all-MiniLM-L6-v2")
    names = complete_models()
    assert [name for name in names if name.startswith("S")] == ["SmolLM2-135M-Instruct"]
    assert [name for name in names if name.startswith("all")] == ["all-MiniLM-L6-v2"]
    located = {name for model in in_directories([models]) for name in model.names}
    assert located - {*names} == {"theirs", "empty"}


def test_aliases_the_default_and_other_directories(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_model(tmp_path / "other" / "far")
    monkeypatch.setenv("OMLX_MODELS__DIRS", str(tmp_path / "other"))
    monkeypatch.setenv("OMLX_MODELS__USE_HF_CACHE", "false")
    monkeypatch.setenv("OMLX_MODELS__DEFAULT", "usual")
    (tmp_path / CONFIG).write_text('[models.aliases]\nsmall = "org/theirs"\n')
    own = ["mine", "org/theirs"]
    assert complete_models() == ["starter", "far", *own, "small", "usual"]


def test_models_of_other_programs_by_their_file_names_alone(models: Path, home: Path) -> None:
    store = home / ".ollama" / "models"
    manifests = store / "manifests" / "registry.ollama.ai" / "library" / "qwen3"
    manifests.mkdir(parents=True)
    digest = "0" * 64
    layer = {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{digest}"}
    for tag in ("latest", "0.6b"):
        (manifests / tag).write_text(json.dumps({"layers": [layer]}))
    (store / "blobs").mkdir()
    (store / "blobs" / f"sha256-{digest}").write_text("not opened")
    studio = home / ".lmstudio" / "models"
    make_model(studio / "acme" / "mlx")
    (studio / "acme" / "gguf").mkdir()
    (studio / "acme" / "gguf" / "small.gguf").write_text("not opened")
    (models / "top.gguf").touch()
    names = complete_models()
    others = ["qwen3:0.6b", "qwen3", "qwen3:latest"]
    assert [n for n in names if n.startswith("qwen3")] == others
    assert {"acme/mlx", "acme/small", "top"} <= {*names}
    assert "small" not in names
    assert not (models / ".gguf").exists(), "it has parsed the files"


def test_hugging_face_may_be_elsewhere(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    assert "mlx-community/Qwen3-0.6B" not in complete_models()
    make_model(tmp_path / "hf" / "hub" / "models--a--b" / "snapshots" / "1")
    assert "a/b" in complete_models()
    gguf = tmp_path / "hf" / "hub" / "models--a--g" / "snapshots" / "1" / "g-Q4_K_M.gguf"
    gguf.parent.mkdir(parents=True)
    gguf.write_text("not opened")
    names = complete_models()
    assert "a/g:Q4_K_M" in names and not {"a/g", "g:Q4_K_M"} & {*names}
    monkeypatch.setenv("HUGGINGFACE_HUB_CACHE", str(tmp_path / "older"))
    make_model(tmp_path / "older" / "models--a--c" / "snapshots" / "1")
    assert "a/c" in complete_models()
    assert "a/b" not in complete_models()
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "nowhere"))
    assert not [name for name in complete_models() if name.startswith("a/")]


def test_keys_and_clients() -> None:
    assert complete_keys() == sorted(settings.KEYS)
    assert complete_clients() == ["claude", "codex", "opencode", "aider"]


def test_values_of_settings(models: Path) -> None:
    assert possible_values("logging.level") == ["debug", "info", "warning", "error"]
    assert possible_values("memory.limit") == ["auto"]
    assert possible_values("web.enabled") == ["true", "false"]
    assert "mine" in possible_values("models.pinned")
    assert "turboquant" in possible_values("models.overrides.org/theirs.kv_cache.scheme")
    assert "qwen3_coder" in possible_values("models.overrides.org/theirs.tool_parser")
    for unlisted in ("server.port", "server.prot", "models.overrides.x", "auth.api_keys", ""):
        assert possible_values(unlisted) == []


def test_a_broken_config_offers_nothing(tmp_path: Path) -> None:
    (tmp_path / CONFIG).write_text("= nonsense")
    assert complete_models() == []


# --- Through the program -------------------------------------------------------------------------


SET = ("", ".ttl", ".presets.coder.seed")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("omlx-server serve mi", ["mine", "mistral-7b"]),
        ("omlx-server serve minil", []),
        ("omlx-server up org", ["org/theirs"]),
        ("omlx-server show mi", ["mine"]),
        ("omlx-server up phi", ["phi-4"]),
        ("omlx-server serve phi", ["phi-4"]),
        ("omlx-server pull phi", ["phi-4"]),
        ("omlx-server pull minil", ["minilm"]),
        ("omlx-server chat phi", []),
        ("omlx-server chat mlx", ["mlx-community/Qwen3-0.6B"]),
        ("omlx-server launch claude --model st", ["starter"]),
        ("omlx-server bench --model st", ["starter"]),
        ("omlx-server launch op", ["opencode"]),
        ("omlx-server config get server.po", ["server.port"]),
        ("omlx-server config set server.po", ["server.port"]),
        ("omlx-server config get log", ["logging"]),
        ("omlx-server config set logging.level war", ["warning"]),
        (
            "omlx-server config unset models.",
            ["models.aliases", *(f"models.overrides.org/a{key}" for key in SET)],
        ),
        ("omlx-server chat --preset co", ["coder"]),
        ("omlx-server config unset --config other.toml server.", ["server.port"]),
        ("omlx-server config unset --config none.toml server.", []),
        ("omlx-server serve --kv-scheme tu", ["turboquant"]),
        ("omlx-server serve --reranker mi", ["mine"]),
        ("omlx-server serve --set scheduler.pol", ["scheduler.policy="]),
        ("omlx-server serve --set scheduler.policy=fc", ["scheduler.policy=fcfs"]),
        ("omlx-server ben", ["bench"]),
        ("omlx-server cache st", ["stats"]),
    ],
)
def test_words_are_completed(
    line: str, expected: list[str], models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other.toml").write_text("[server]\nport = 1\n")
    config = '[models]\naliases = {}\n[models.overrides."org/a"]\nttl = 5\npresets.coder.seed = 1\n'
    (tmp_path / "mine.toml").write_text(config)
    monkeypatch.setenv("OMLX_CONFIG", str(tmp_path / "mine.toml"))
    line = line.replace("other.toml", str(tmp_path / "other.toml"))
    assert offered(line) == expected


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_in_every_shell(shell: str, models: Path) -> None:
    done = complete("omlx-server serve mi", shell)
    assert "mine" in done.stdout
    assert "starter" not in done.stdout


def test_it_imports_nothing_heavy(models: Path) -> None:
    begun = time.perf_counter()
    done = complete("omlx-server serve mi")
    sys.stdout.write(f"\ncompletion of a model: {time.perf_counter() - begun:.3f} s\n")
    # The names of clients are in a file that needs the settings, as all of them do.
    imported = set(done.stderr.splitlines()[-1].split())
    assert not imported & (HEAVY | {"huggingface_hub"})


@pytest.mark.parametrize(
    "environ",
    [
        {"OMLX_SERVER__PORT": "many"},
        {"OMLX_CONFIG": "/nowhere/at/all.toml"},
        {"HOME": "/dev/null/home"},
    ],
)
@pytest.mark.parametrize("line", ["omlx-server serve zz", "omlx-server config get zz"])
def test_errors_are_never_shown(environ: dict[str, str], line: str) -> None:
    assert offered(line, **environ) == []


BUG = """
import sys
from omlx_server.cli import app
from omlx_server.cli.shell import model_names as names
def models(): raise ZeroDivisionError("oops")
names.models = models
sys.argv = ["omlx-server"]
app.main()
"""


def test_not_even_a_bug_is_shown() -> None:
    environ = {"COMP_WORDS": "omlx-server serve s", "COMP_CWORD": "2"}
    done = subprocess.run(
        [sys.executable, "-c", BUG],
        cwd=ROOT,
        env=os.environ | environ | {"_OMLX_SERVER_COMPLETE": "complete_bash"},
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.stderr) == ("", "")


# --- In a real bash ------------------------------------------------------------------------------


@pytest.fixture
def on_path(tmp_path: Path) -> str:
    """A PATH that has `omlx-server`."""
    stub = tmp_path / "bin" / "omlx-server"
    stub.parent.mkdir()
    stub.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec "{sys.executable}" -m omlx_server "$@"\n')
    stub.chmod(stub.stat().st_mode | stat.S_IXUSR)
    return f"{stub.parent}:{os.environ['PATH']}"


def bash(script: str, path: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "--norc", "-c", script],
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_it_is_installed_and_works(home: Path, on_path: str, models: Path) -> None:
    # `true`, lest bash becomes the program and is not its parent any more.
    done = bash("omlx-server --install-completion; true", on_path)
    assert "bash completion installed in" in done.stdout
    script = """
        source ~/.bashrc
        COMP_WORDS=(omlx-server serve min) COMP_CWORD=2
        $(complete -p omlx-server | sed 's/.*-F \\([^ ]*\\).*/\\1/') omlx-server
        echo "${COMPREPLY[@]}"
    """
    done = bash(script, on_path)
    assert (done.stdout, done.stderr) == ("mine\n", "")


def test_the_script_can_be_shown(on_path: str) -> None:
    done = bash("omlx-server --show-completion; true", on_path)
    assert "complete -o default -F _omlx_server_completion omlx-server" in done.stdout
