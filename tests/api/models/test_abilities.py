"""A model's abilities by its templates alone, which are read again only when a file changes."""

import os
from pathlib import Path

import pytest

from omlx_server.api.models.abilities import Abilities, abilities_by_template, read_abilities
from omlx_server.models import json_file
from tests.api.conftest import CHATML, THINKING
from tests.text import makers

TOOLS = "{% if tools %}{{ tools }}{% endif %}" + CHATML


@pytest.mark.parametrize(
    ("template", "tools", "thinking"),
    [(CHATML, False, False), (TOOLS, True, False), (THINKING, False, True), ("{%", False, False)],
)
def test_they_are_those_of_all_files(
    tmp_path: Path, template: str, tools: bool, thinking: bool
) -> None:
    path = makers.save(tmp_path / "model", "byte_level", template)
    quick, whole = abilities_by_template(path), read_abilities(path)
    assert (quick.tools, quick.thinking) == (tools, thinking)
    assert (whole.tools, whole.thinking) == (tools, thinking)


def test_no_vocabulary_is_read_and_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = makers.save(tmp_path / "model", "byte_level", CHATML)
    read, text = list[str](), json_file.text

    def noting(file: Path) -> str:
        read.append(file.name)
        return text(file)

    monkeypatch.setattr(json_file, "text", noting)
    assert not abilities_by_template(path).tools
    once = list(read)
    assert once and "tokenizer.json" not in once
    assert not abilities_by_template(path).tools
    assert read == once
    (path / "chat_template.jinja").write_text(TOOLS)
    os.utime(path / "chat_template.jinja", (1, 1))
    assert abilities_by_template(path).tools


def test_the_settings_win_and_what_is_gone_has_none(tmp_path: Path) -> None:
    path = makers.save(tmp_path / "model", "byte_level", THINKING)
    template = tmp_path / "own.jinja"
    template.write_text(TOOLS)
    told = abilities_by_template(path, str(template))
    assert (told.tools, told.thinking) == (True, False)
    assert not abilities_by_template(path, "", "none").thinking
    assert abilities_by_template(tmp_path / "gone") == Abilities()
    assert abilities_by_template(None) == Abilities()
