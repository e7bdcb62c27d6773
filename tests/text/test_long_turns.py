"""Thousands of messages that become one turn: each text is put into it once."""

from collections.abc import Callable

import pytest

from omlx_server.text.templates import messages
from omlx_server.text.templates.turn_forms import SystemTurns
from omlx_server.text.tool_calls import fallback

TEXT = "so it is " * 5
COUNT = 2000
ASKED = {"role": "user", "content": "Go on."}


def noting(joined: Callable[..., str], lengths: list[int]) -> Callable[..., str]:
    def call(gap: str, *texts: str) -> str:
        lengths.append(sum(map(len, texts)))
        return joined(gap, *texts)

    return call


def test_results_of_tools_for_a_template_that_knows_none(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []
    monkeypatch.setattr(messages, "join_texts", noting(messages.join_texts, lengths))
    result = {"role": "tool", "tool_call_id": "c", "content": TEXT}
    turns = fallback.tools_as_text([ASKED, *[result] * COUNT, ASKED], [])
    assert [turn["role"] for turn in turns] == ["user", "user"]
    assert turns[1]["content"].count(TEXT) == COUNT
    assert turns[1]["content"].endswith("</tool_response>\nGo on.")
    assert sum(lengths) <= 2 * len(turns[1]["content"])


def test_system_messages_that_the_user_says(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []
    monkeypatch.setattr(messages, "join_texts", noting(messages.join_texts, lengths))
    turns = SystemTurns(late=False).fitted([ASKED, *[{"role": "system", "content": TEXT}] * COUNT])
    assert len(turns) == 1 and turns[0]["content"].count(TEXT) == COUNT
    assert sum(lengths) <= 2 * len(turns[0]["content"])
