"""Loads that make nothing for long texts and for grammars."""

import pytest

from omlx_server.text.grammar.compile import Grammars
from omlx_server.text.tokenizer import Tokenizer


@pytest.fixture(autouse=True)
def nothing_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are made when they are needed, which no test here does: ahead they are nine tenths of
    the load of a tiny model. The tests of servers make them."""
    monkeypatch.setattr(Tokenizer, "prepare", lambda self: None)
    monkeypatch.setattr(Grammars, "warm", lambda self, memory_limit: None)
