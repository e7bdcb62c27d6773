"""Loaded tokenizers, one per family and template, each made once per session."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from omlx_server.text.tokenizer import Tokenizer
from tests.text import makers

Folder = Callable[..., Path]
Load = Callable[..., Tokenizer]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """A model folder of a family with a template."""

    @cache
    def made(family: str, template: str | None = None) -> Path:
        return makers.save(tmp_path_factory.mktemp(family), family, template)

    return made


@pytest.fixture(scope="session")
def load(folder: Folder) -> Load:
    @cache
    def loaded(family: str, template: str | None = None) -> Tokenizer:
        return Tokenizer.load(folder(family, template))

    return loaded
