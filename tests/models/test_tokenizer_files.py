"""The files of a tokenizer say without it what it says itself."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from omlx_server.models.tokenizer_files import TokenizerFiles
from omlx_server.text.tokenizer import Tokenizer
from tests.text import makers

Change = Callable[[Path, dict[str, Any]], object]
TABLE = {"content": "<|new|>", "special": True, "__type": "AddedToken"}
PLACED = TABLE | {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False}


def written(path: Path, text: str) -> int:
    path.parent.mkdir(exist_ok=True)
    return path.write_bytes(text.encode())


CHANGES: dict[str, Change] = {
    "as it is": lambda path, config: None,
    "no template": lambda path, config: config.pop("chat_template"),
    "several": lambda path, config: config.update(
        chat_template=[{"name": "default", "template": "d"}, {"name": "rag", "template": "r"}]
    ),
    "by name": lambda path, config: config.update(chat_template={"default": "d"}),
    "a file": lambda path, config: written(path / "chat_template.jinja", "file"),
    "lines of Windows": lambda path, config: written(path / "chat_template.jinja", "a\r\nb\n"),
    "more files": lambda path, config: written(
        path / "additional_chat_templates" / "tool_use.jinja", "tools"
    ),
    "of a processor": lambda path, config: (
        config.pop("chat_template"),
        written(path / "chat_template.json", '{"chat_template": "x"}'),
    ),
    "a parser": lambda path, config: config.update(tool_parser_type="glm47"),
    "a token by id": lambda path, config: config.update(added_tokens_decoder={"900": PLACED}),
    "a special token": lambda path, config: config.update(bos_token="<|new|>"),
    "one of its own": lambda path, config: config.update(odd_token=TABLE),
    "additional ones": lambda path, config: config.update(
        additional_special_tokens=["<|new|>", TABLE]
    ),
    "extra ones": lambda path, config: config.update(extra_special_tokens=["<|new|>"]),
    "extra ones by name": lambda path, config: config.update(
        extra_special_tokens={"new_token": "<|new|>"}
    ),
    "an old file": lambda path, config: written(path / "added_tokens.json", '{"<|new|>": 900}'),
    "an old map": lambda path, config: written(
        path / "special_tokens_map.json", '{"additional_special_tokens": ["<|new|>"]}'
    ),
}


def changed(path: Path, change: Change, family: str = "byte_level") -> Path:
    makers.save(path, family, "plain")
    file = path / "tokenizer_config.json"
    config = json.loads(file.read_text())
    change(path, config)
    file.write_text(json.dumps(config))
    return path


def assert_as_loaded(path: Path) -> TokenizerFiles:
    files, tokenizer = TokenizerFiles.of(path), Tokenizer.load(path)
    assert files.templates == tokenizer.chat_templates
    assert bool(files.templates) == bool(files.template_file)
    assert files.tool_parser == tokenizer.tool_parser
    assert files.vocabulary == tokenizer.vocabulary
    return files


@pytest.mark.parametrize("what", CHANGES)
def test_they_say_what_the_tokenizer_says(what: str, tmp_path: Path) -> None:
    files = assert_as_loaded(changed(tmp_path, CHANGES[what]))
    news = ("a token", "a special", "one of", "additional", "extra", "an old")
    assert ("<|new|>" in files.vocabulary) == what.startswith(news)


@pytest.mark.parametrize("family", makers.FAMILIES)
def test_of_every_kind_of_vocabulary(family: str, tmp_path: Path) -> None:
    files = assert_as_loaded(changed(tmp_path, CHANGES["as it is"], family))
    assert len(files.vocabulary) > 100


@pytest.mark.parametrize(
    "name",
    [
        "tokenizer.json",
        "tokenizer_config.json",
        "added_tokens.json",
        "special_tokens_map.json",
        "chat_template.jinja",
    ],
)
@pytest.mark.parametrize("text", ["[[[[", "3", "[1]", '{"model": 3, "added_tokens": {"a": 1}}'])
def test_what_makes_no_sense_says_nothing(name: str, text: str, tmp_path: Path) -> None:
    changed(tmp_path, CHANGES["as it is"])
    (tmp_path / name).write_text(text)
    assert isinstance(TokenizerFiles.of(tmp_path), TokenizerFiles)


@pytest.mark.parametrize(
    "config",
    [
        {"chat_template": 3},
        {"chat_template": [{"name": "default"}, 3]},
        {"tool_parser_type": ["glm47"]},
        {"added_tokens_decoder": [3, {"content": 3}], "bos_token": 3},
    ],
)
def test_values_of_another_type_say_nothing(config: dict[str, Any], tmp_path: Path) -> None:
    makers.save(tmp_path, "byte_level")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    files = TokenizerFiles.of(tmp_path)
    assert (files.templates, files.tool_parser) == ({}, None)


def test_a_pipe_and_an_empty_directory_say_nothing(tmp_path: Path) -> None:
    assert TokenizerFiles.of(tmp_path) == TokenizerFiles({}, frozenset(), None)
    os.mkfifo(tmp_path / "chat_template.jinja")
    os.mkfifo(tmp_path / "tokenizer.json")
    assert TokenizerFiles.of(tmp_path) == TokenizerFiles({}, frozenset(), None)


def test_the_template_of_a_processor_counts_where_there_is_no_other(tmp_path: Path) -> None:
    files = assert_as_loaded(changed(tmp_path, CHANGES["of a processor"]))
    assert files.templates == {"default": "x"}
