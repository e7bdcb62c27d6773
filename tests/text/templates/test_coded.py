"""A template that mlx-lm has as code, for a model whose configuration names it."""

import json
from pathlib import Path
from typing import Any

import pytest

from omlx_server.core.model_files.parser_signs import tool_parser_of
from omlx_server.models.tokenizer_files import TokenizerFiles
from omlx_server.text.dialect import PromptRenderer, dialect_of
from omlx_server.text.templates.template import ChatTemplate
from omlx_server.text.tokenizer import Tokenizer
from tests.text import makers

TOOL = {"type": "function", "function": {"name": "look", "description": "Look."}}
ASKS = {"role": "user", "content": "Hi."}
CALL = {"id": "x", "type": "function", "function": {"name": "look", "arguments": '{"at": "it"}'}}
CALLED: list[dict[str, Any]] = [
    ASKS,
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "x", "content": "seen"},
]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = makers.save(tmp_path_factory.mktemp("coded"), "byte_level", "of another")
    config = path / "tokenizer_config.json"
    told = json.loads(config.read_text()) | {"chat_template_type": "deepseek_v32"}
    config.write_text(json.dumps(told))
    return path


@pytest.fixture(scope="module")
def prompts(path: Path) -> PromptRenderer:
    tokenizer = Tokenizer.load(path)
    template = ChatTemplate(tokenizer)
    return PromptRenderer(template, dialect_of(tokenizer, template.render), [TOOL], {})


def test_it_is_used_and_its_parsers_are_known(path: Path, prompts: PromptRenderer) -> None:
    (shown,) = TokenizerFiles.of(path).templates.values()
    assert tool_parser_of(shown, ()) == "deepseek_v32"
    dialect = prompts.dialect
    assert dialect.family.name == "deepseek_v32" and dialect.shows_tools
    assert dialect.style is not None and dialect.style.start == "<think>"


def test_it_shows_tools_without_a_system_message(prompts: PromptRenderer) -> None:
    text = prompts.template.render(prompts.fitted([ASKS]), tools=[TOOL])
    assert '"look"' in text and text.endswith("<｜User｜>Hi.<｜Assistant｜><think>")


def test_it_shows_calls_and_thinks_or_not(prompts: PromptRenderer) -> None:
    text = prompts.template.render(prompts.fitted(CALLED), tools=[TOOL])
    assert '<｜DSML｜parameter name="at" string="true">it</｜DSML｜parameter>' in text
    plain = prompts.template.render([ASKS], kwargs={"enable_thinking": False})
    assert plain.endswith("<｜Assistant｜></think>")
