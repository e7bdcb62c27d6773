"""Thousands of messages that become one turn: each text is put into it once."""

from collections.abc import Callable
from typing import Any

import pytest

from omlx_server.text.templates import system_turns
from omlx_server.text.templates.system_turns import SystemTurns
from omlx_server.text.tools import fallback

TEXT = "so it is " * 5
COUNT = 2000
ASKED = {"role": "user", "content": "Go on."}


def noting(joined: Callable[..., Any], lengths: list[int]) -> Callable[..., Any]:
    def call(*texts: Any, **how: Any) -> Any:
        lengths.append(sum(len(text) for text in texts if isinstance(text, str)))
        return joined(*texts, **how)

    return call


def test_results_of_tools_for_a_template_that_knows_none(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []
    monkeypatch.setattr(fallback, "_joined", noting(fallback._joined, lengths))
    result = {"role": "tool", "tool_call_id": "c", "content": TEXT}
    turns = fallback.with_tools([ASKED, *[result] * COUNT, ASKED], [])
    assert [turn["role"] for turn in turns] == ["user", "user"]
    assert turns[1]["content"].count(TEXT) == COUNT
    assert turns[1]["content"].endswith("</tool_response>\nGo on.")
    assert sum(lengths) <= 2 * len(turns[1]["content"])


def test_system_messages_that_the_user_says(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []
    monkeypatch.setattr(system_turns, "_joined", noting(system_turns._joined, lengths))
    turns = SystemTurns(late=False).fitted([ASKED, *[{"role": "system", "content": TEXT}] * COUNT])
    assert len(turns) == 1 and turns[0]["content"].count(TEXT) == COUNT
    assert sum(lengths) <= 2 * len(turns[0]["content"])
