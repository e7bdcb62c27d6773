"""`list`, `rm` and `alias` on models of a few bytes; `pull` against a hub of our own."""

import hashlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from omlx_server.cli.app import app
from omlx_server.cli.shell.progress import open_display
from omlx_server.models.catalogue import STARTER
from omlx_server.models.hub.part import bytes_here
from tests.cli.home import CONFIG
from tests.cli.program import HEAVY, imported_by
from tests.cli.terminal import Terminal
from tests.models import fake_hub, tiny_gguf
from tests.models.directories import make, no_tensors
from tests.models.fake_hub import Faults

runner = CliRunner()
ROOT = Path(__file__).parents[2]
REPO = "acme/tiny-4bit"
WEIGHTS = random.Random(2).randbytes(2_000_000)
FILES = {
    "config.json": b'{"architectures": ["LlamaForCausalLM"], "vocab_size": 9}',
    "tokenizer.json": b"{}",
    "model.safetensors": WEIGHTS,
}
LARGE = frozenset({"model.safetensors"})
SHA256 = hashlib.sha256(WEIGHTS).hexdigest()
COMMANDS = ("search", "pull", "list", "show", "rm", "alias", "ps", "load", "unload", "pin")


@pytest.fixture(autouse=True)
def models(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OMLX_MODELS__DIRS", str(home / "models"))
    monkeypatch.setenv("OMLX_MODELS__USE_HF_CACHE", "false")
    monkeypatch.setenv("OMLX_SERVER__PORT", "1")
    return home / "models"


def omlx(*arguments: str, code: int = 0, **options: Any) -> str:
    result = runner.invoke(app, [*arguments], **options)
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else result.stderr


# --- list ----------------------------------------------------------------------------------------


def test_list_as_a_table_and_as_json(models: Path, home: Path) -> None:
    assert "omlx-server pull" in omlx("list")
    make(models / "acme" / "tiny-4bit", weights=1500)
    (models / "old").mkdir()
    (models / "old" / "pytorch_model.bin").touch()
    (home / CONFIG).write_text('[models.aliases]\nsmall = "tiny-4bit"\n')
    table = omlx("list")
    row = next(line for line in table.splitlines() if "acme/tiny-4bit" in line)
    assert row.split() == ["acme/tiny-4bit", "chat", "1.5", "kB", "2048", "directory"]
    assert "also small" in table
    assert "has no config.json; it holds PyTorch weights" in table
    found = json.loads(omlx("list", "--json"))["models"]
    assert [m["name"] for m in found] == ["acme/tiny-4bit", "old"]
    assert found[0]["aliases"] == ["small"]
    assert (found[0]["weight_bytes"], found[0]["problem"]) == (1500, None)
    assert found[0]["path"] == str(models / "acme" / "tiny-4bit")


# --- rm ------------------------------------------------------------------------------------------


def test_rm_asks_and_tells_what_is_free(models: Path) -> None:
    path = make(models / "acme" / "tiny", weights=2_000_000)
    assert "--yes" in omlx("rm", "tiny", code=2)
    assert path.is_dir()
    assert "2.0 MB are free" in omlx("rm", "tiny", "--yes")
    assert not (models / "acme").exists()
    assert "There is no model 'tiny' here" in omlx("rm", "tiny", "--yes", code=2)


def test_rm_knows_short_names_and_suggests_only_what_is_here(models: Path) -> None:
    path = make(models / "mlx-community" / "Qwen3-0.6B-4bit")
    for name in ("qwen3-0.6", "starte"):
        assert omlx("rm", name, "--yes", code=2).splitlines() == [
            f"error: There is no model {name!r} here",
            "hint: Did you mean Qwen3-0.6B-4bit?"
            if name == "qwen3-0.6"
            else "hint: `omlx-server list` shows what is here",
        ]
    assert "Removed mlx-community/Qwen3-0.6B-4bit" in omlx("rm", "qwen3-0.6b", "--yes")
    assert not path.exists()
    assert "`omlx-server list` shows" in omlx("rm", "qwen3-0.6b", "--yes", code=2)


def test_rm_takes_the_second_of_two_by_its_path_and_nothing_from_outside(
    models: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = make(models / "tiny"), make(home / "more" / "tiny")
    other = make(home / "other" / "tiny")
    monkeypatch.setenv("OMLX_MODELS__DIRS", f"{models},{home / 'more'}")
    assert "no model of models.dirs" in omlx("rm", str(other), "--yes", code=2)
    omlx("rm", str(second), "--yes")
    assert (first.is_dir(), second.is_dir(), other.is_dir()) == (True, False, True)


def test_rm_does_not_take_an_alias(models: Path, home: Path) -> None:
    make(models / "tiny")
    (home / CONFIG).write_text('[models.aliases]\nsmall = "tiny"\n')
    assert "another name of tiny" in omlx("rm", "small", "--yes", code=2)
    assert (models / "tiny").is_dir()


# --- alias ---------------------------------------------------------------------------------------

MINE = """# mine
[server]
port = 9000  # not 8000

[models]
default = "tiny"  # small

[models.aliases]
# for a client that knows one name only
gpt-4o = "starter"

[logging]
level = "debug"
"""


def test_an_alias_is_written_and_comments_stay(models: Path, home: Path) -> None:
    make(models / "acme" / "tiny")
    file = home / CONFIG
    file.write_text(MINE)
    omlx("alias", "small", "acme/tiny")
    line = 'gpt-4o = "starter"\n'
    assert file.read_text().replace('small = "acme/tiny"\n', "") == MINE
    assert file.read_text().index(line) < file.read_text().index("small = ")
    assert json.loads(omlx("alias", "--json")) == {"gpt-4o": "starter", "small": "acme/tiny"}
    assert omlx("alias") == "gpt-4o -> starter\nsmall -> acme/tiny\n"
    assert json.loads(omlx("alias", "--remove", "small", "--json")) == {"gpt-4o": "starter"}
    assert file.read_text() == MINE
    assert json.loads(omlx("alias", "small", "acme/tiny", "--json")) == {
        "gpt-4o": "starter",
        "small": "acme/tiny",
    }


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[server]\nport = 1\n",
        "[models]\naliases = {a = 'b'}  # x\n",
        "models = {default = 'x'}\n",
        "models.default = 'x'\n",
        "[models]\ndefault = 'x'\n[models.overrides.a]\npin = true\n",
        "[models.overrides.a]\npin = true\n",
        MINE,
    ],
)
def test_any_shape_of_a_file_takes_an_alias(text: str, models: Path, home: Path) -> None:
    (home / CONFIG).write_text(text)
    make(models / "tiny")
    omlx("alias", "my model", "tiny")
    assert json.loads(omlx("alias", "--json"))["my model"] == "tiny"
    omlx("alias", "my model", "starter")
    omlx("alias", "--remove", "my model")
    assert "my model" not in (home / CONFIG).read_text()


def test_an_alias_may_stand_for_a_model_with_an_adapter(models: Path) -> None:
    adapter = make(models / "acme" / "tiny") / "adapters" / "coder"
    adapter.mkdir(parents=True)
    (adapter / "adapter_config.json").write_text("{}")
    for name, target in (("coder", "acme/tiny:coder"), ("short", "tiny:coder")):
        assert omlx("alias", name, target).startswith(f"{name} -> {target}")


def test_aliases_that_make_no_sense_are_refused(models: Path, home: Path) -> None:
    make(models / "acme" / "tiny")
    (home / CONFIG).write_text(MINE)
    for arguments, words in (
        (("tiny", "starter"), "has the name tiny already"),
        (("starter", "tiny"), "has the name starter already"),
        (
            ("small", "acme/other"),
            "no model 'acme/other' here\nhint: `omlx-server pull acme/other`",
        ),
        (("small", "qwen3-4b"), "hint: `omlx-server pull qwen3-4b` first"),
        (("small", "acme/tiny:coder"), "acme/tiny has no adapter coder"),
        (("small", str(models / "acme" / "tiny")), "here\nhint: `omlx-server list` shows"),
        (("small", "gpt-4o"), "gpt-4o is an alias itself"),
        (("small",), "what should small stand for"),
        (("--remove", "small"), "there is no alias small"),
        (("a", "tiny", "--remove", "b"), "--remove stands alone"),
        (("a\nb", "tiny"), "can't be a name"),
    ):
        assert words in omlx("alias", *arguments, code=2)
    assert (home / CONFIG).read_text() == MINE


@pytest.mark.parametrize("text", ["[models]\naliases = 3\n", "models = 3\n", "[models\n"])
def test_a_file_that_is_wrong_stays_as_it_is(text: str, models: Path, home: Path) -> None:
    (home / CONFIG).write_text(text)
    make(models / "tiny")
    omlx("alias", "small", "tiny", code=2)
    assert (home / CONFIG).read_text() == text


# --- pull ----------------------------------------------------------------------------------------


def program(address: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "omlx_server", *arguments],
        cwd=ROOT,
        env={**os.environ, "HF_ENDPOINT": address, "HF_HOME": f"{os.environ['HOME']}/hf"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_pull_tells_progress_and_ends_with_json(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMLX_MEMORY__LIMIT", "8GB")
    with fake_hub.serve(REPO, FILES, LARGE) as (address, _):
        out, err = program(address, "pull", REPO, "--json").communicate(timeout=60)
        said = json.loads(out)
        assert (said["name"], said["path"]) == (REPO, str(models / REPO))
        assert (said["fetched_bytes"], said["checked"]) == (len(WEIGHTS), True)
        fit, first, *_ = err.splitlines()
        assert fit == f"{REPO}: 2.0 MB, fits 8.0 GB of memory with 32k tokens of context"
        assert said["fit"] == "fits"
        # It may have come in part before the first line.
        assert re.fullmatch(r"download: \d+ %", first)
        assert err.splitlines()[-1] == "verify: 100 %"
    out, err = program("http://127.0.0.1:9", "pull", REPO).communicate(timeout=60)
    assert "not checked: there is no network" in out
    assert "/tiny-4bit" in out


@pytest.mark.parametrize("columns", [150, 80, 60, 40, 20])
def test_a_bar_fits_the_terminal(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(columns))
    stream, gigabytes = Terminal(), 10**9
    with open_display(stream) as display:
        for done in range(12, 15):
            display.update("download again", done * gigabytes, 345_600_000_000)
            time.sleep(0.05)
        display.update("a stage with a long name", 3, 9)
    lines = re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue()))
    assert max(map(len, lines)) <= columns
    row = [line for line in lines if line.startswith("download again"[: columns // 2])][-1]
    assert ("14.0 of 345.6 GB" in row) == (columns >= 60)
    assert bool(re.search(r"\d GB/s +\d\d:\d\d", row)) == (columns >= 40)
    assert "4%" in row and "bytes" not in lines[-2]


def test_what_was_here_is_no_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    stream = Terminal()
    with open_display(stream) as display:
        for done in (2_000_000_000, 2_001_000_000, 2_002_000_000):
            display.update("download", done, 4_000_000_000)
            time.sleep(0.05)
    assert "2.0 of 4.0 GB" in stream.getvalue()
    assert "MB/s" in stream.getvalue() and "GB/s" not in stream.getvalue()


def test_pull_into_the_cache_and_rm_out_of_it(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMLX_MODELS__USE_HF_CACHE", "true")
    folder = home / "hf" / "hub" / "models--acme--tiny-4bit"
    with fake_hub.serve(REPO, FILES, LARGE) as (address, _):
        out, _ = program(address, "pull", REPO, "--json").communicate(timeout=60)
        said = json.loads(out)
        assert said["path"].startswith(str(folder))
        shown, _ = program(address, "show", REPO, "--json").communicate(timeout=60)
        for told in (said, json.loads(shown)):
            assert 2_000_000 < told["disk_bytes"] < 2_001_000
        assert (folder / "blobs" / SHA256).is_file()
        out, _ = program(address, "rm", REPO, "--yes").communicate(timeout=60)
    assert "2.0 MB are free" in out
    assert not folder.exists()


def test_a_gguf_model_is_pulled_shown_and_removed_by_its_tag(models: Path, tmp_path: Path) -> None:
    tiny_gguf.write_gguf(tmp_path / "tiny.gguf")
    files = {"tiny-Q4_1.gguf": (tmp_path / "tiny.gguf").read_bytes(), "tiny-Q8_0.gguf": b"x"}
    size = len(files["tiny-Q4_1.gguf"])
    name = "acme/tiny-GGUF:Q4_1"
    with fake_hub.serve("acme/tiny-GGUF", files, frozenset(files)) as (address, _):
        _, err = program(address, "pull", "acme/tiny-GGUF").communicate(timeout=60)
        assert "has 2 GGUF models" in err and "acme/tiny-GGUF:Q4_1, Q8_0" in err
        out, err = program(address, "pull", f"hf://{name}", "--json").communicate(timeout=60)
        said = json.loads(out)
        assert (said["name"], said["fetched_bytes"], said["disk_bytes"]) == (name, size, size)
        assert err.splitlines()[0] == f"hf://{name}: {name}"
    shown = json.loads(omlx("show", name, "--json"))
    assert shown["disk_bytes"] == size and name in shown["names"]
    assert f"Removed {name}" in omlx("rm", name, "--yes")
    assert not (models / "acme").exists()


def test_ctrl_c_keeps_what_has_come(models: Path) -> None:
    faults = Faults(stall_after=600_000)
    with fake_hub.serve(REPO, FILES, LARGE, faults) as (address, asked):
        process = program(address, "pull", REPO)
        part = models / ".downloads" / ".parts" / f"{SHA256}.omlx.incomplete"
        deadline = time.monotonic() + 30
        while bytes_here(part, len(WEIGHTS)) < 1_000_000:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
        assert process.returncode == 130
        assert "run it again to go on" in err
        assert "Traceback" not in err
        faults.stall_after = 0
        asked.clear()
        out, _ = program(address, "pull", REPO, "--json").communicate(timeout=60)
    assert json.loads(out)["fetched_bytes"] <= 1_000_000
    assert (models / REPO / "model.safetensors").read_bytes() == WEIGHTS


def test_a_short_name_says_which_model_it_is(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMLX_MEMORY__LIMIT", "1GB")
    repo = "mlx-community/Qwen3-0.6B-4bit"
    with fake_hub.serve(repo, FILES, LARGE) as (address, _):
        out, err = program(address, "pull", "qwen3:0.6b", "--json").communicate(timeout=60)
    assert json.loads(out)["name"] == repo
    assert err.splitlines()[:2] == [
        f"qwen3:0.6b: {repo}",
        f"{repo}: 2.0 MB, tight: 1.0 GB of memory has room for short conversations, not for 32k "
        "tokens of context",
    ]


def test_pull_says_first_that_a_model_is_too_large(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMLX_MEMORY__LIMIT", "2MB")
    with fake_hub.serve(REPO, FILES, LARGE) as (address, _):
        _, err = program(address, "pull", REPO).communicate(timeout=60)
        assert err.splitlines()[0] == f"{REPO}: 2.0 MB, too large for 2.0 MB of memory"
        _, err = program(address, "pull", REPO).communicate(timeout=60)
    assert "too large" not in err, "it is here already"


def test_pull_says_in_a_line_what_is_wrong(models: Path) -> None:
    make(models / "here")
    process = program("http://127.0.0.1:9", "pull", "acme/none")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    error, hint = err.splitlines()
    assert error.startswith("error: Could not download acme/none")
    assert hint == "hint: Check the network. These models are here already: here."


def test_pull_says_what_it_can_not_repair(models: Path) -> None:
    path = make(models / "mine", weights=1500)
    (path / "tokenizer.json").write_text('{"model": {}}')
    assert omlx("pull", "mine") == f"mine is here: {path}\n"
    (path / "model.safetensors").write_bytes(no_tensors(1500)[:700])
    said = omlx("pull", "mine", code=1)
    assert "mine in " in said and "is damaged: model.safetensors is cut" in said
    assert "`omlx-server rm mine`" in said
    assert "model.safetensors is cut" in omlx("list")
    assert omlx("rm", "mine", "--yes")


# --- search --------------------------------------------------------------------------------------


def test_search_without_a_text_lists_what_has_a_short_name(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(models / "mlx-community" / "Qwen3-4B-4bit")
    monkeypatch.setenv("OMLX_MEMORY__LIMIT", "5GB")
    table = omlx("search")
    rows = {line.split()[0]: line.split()[1:] for line in table.splitlines() if line.strip()}
    assert rows["qwen3-4b"] == ["(here)", "2.3", "GB", "40960", "tight"]
    assert rows["minilm"] == ["90.9", "MB", "256", "fits"]
    assert rows["llama3.3-70b"] == ["39.7", "GB", "131072", "too", "large"]
    assert "fits: 5.0 GB of memory has room for 32k tokens of context" in table
    assert "  SmolLM2-135M-Instruct, 92.9 MB to download" in table
    assert max(len(line.rstrip()) for line in table.splitlines()) <= 80
    found = {m["name"]: m for m in json.loads(omlx("search", "--json"))["models"]}
    assert found["qwen3-4b"]["here"] and not found["qwen3-8b"]["here"]
    assert found["qwen3-8b"]["model"] == "mlx-community/Qwen3-8B-4bit"
    assert found["starter"]["context_length"] == STARTER.context
    assert found["starter"]["bytes"] in STARTER.weight_bytes.values()
    assert found["starter"]["download_bytes"] == STARTER.source.wheel_bytes
    make(models / STARTER.directory_name("f32"), weights=1500)
    listed = {m["name"]: m for m in json.loads(omlx("list", "--json"))["models"]}
    (starter,) = json.loads(omlx("search", "--json"))["models"][:1]
    assert starter["here"] and starter["bytes"] == listed["starter"]["weight_bytes"] == 1500


@pytest.mark.parametrize(
    ("name", "problem", "hint"),
    [
        ("hf.co/mlx-community/a-4bit:Q4", "GGUF", "without the tag: mlx-community/a-4bit"),
        ("org/name:latest", "'latest' is no type", "such as org/name:Q4_K_M, or org/name alone"),
        ("https://ollama.com/library/qwen3:4b", "library holds GGUF", "name qwen3-4b stands"),
        ("ollama.com/library/gemma3/tags?x", "GGUF", "`omlx-server search gemma3` looks"),
        ("registry.ollama.ai/library/phi", "GGUF", "`omlx-server search phi` looks"),
        ("ollama.com", "library holds GGUF", "lists short names"),
    ],
)
def test_a_name_of_gguf_files_is_answered_with_what_to_take(
    name: str, problem: str, hint: str
) -> None:
    error, advice = omlx("pull", name, code=2).splitlines()
    assert error.startswith("error: ") and problem in error
    assert advice.startswith("hint: ") and hint in advice


def test_search_asks_the_hub_and_shows_short_names_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMLX_MEMORY__LIMIT", "20GB")
    config = {"architectures": ["WhisperModel"], "model_type": "whisper"}
    models: list[dict[str, object]] = [
        {"id": "acme/phi-4-tiny", "downloads": 12_345, "safetensors": {"parameters": {"U32": 500}}},
        {"id": "mlx-community/phi-4-4bit", "downloads": 99},
        {"id": "acme/hear", "downloads": 1, "gated": "auto", "config": config},
    ]
    with fake_hub.serve(REPO, FILES, models=models) as (address, asked):
        out, err = program(address, "search", "phi-4").communicate(timeout=60)
        told, _ = program(address, "search", "phi-4", "--json").communicate(timeout=60)
    assert not err and any("search=phi-4" in line for line in asked)
    assert [m["name"] for m in json.loads(told)["models"]] == [
        *("phi-4", "acme/phi-4-tiny", "acme/hear")
    ]
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines() if line.strip()}
    assert rows["phi-4"] == ["8.3", "GB", "16384", "99", "fits"]
    assert rows["acme/phi-4-tiny"] == ["2.0", "kB", "12,345", "fits"]
    assert rows["acme/hear"] == ["1", "gated"]
    assert "is WhisperModel: no model to chat" in out


def test_search_without_a_network_shows_short_names_and_one_error() -> None:
    process = program("http://127.0.0.1:9", "search", "qwen3")
    out, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "qwen3-4b" in out and "phi-4" not in out
    error, hint = err.splitlines()
    assert error.startswith("error: The hub can't be reached: ")
    assert hint.startswith("hint: Check the network")


# --- All of them ---------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
def test_help_teaches_by_example(command: str) -> None:
    result = runner.invoke(app, [command, "--help"])
    assert result.exit_code == 0
    assert "Example" in result.output


def test_help_imports_nothing_heavy() -> None:
    for command in ("pull", "search", "list"):
        assert not imported_by(command, "--help") & (HEAVY | {"huggingface_hub", "httpx2", "tqdm"})
