"""Who may pass a prompt that is next and finds no room."""

import pytest

from omlx_server.core.scheduler.prefill import PrefillPlanner
from tests.core.short import Short

# Beside two short rows both have room for a shorter prompt, but not for the long one. The long one
# would have none beside the shorter one in the first.
_LESS, _MORE = 12_500, 13_500


def order_of_prompts(memory: int) -> list[str]:
    """Two clients have a row each, and a is ahead. b's long prompt is next, and a's shorter one
    comes after it."""
    run = Short(memory)
    run.send("a-row", 20, 20, owner=b"a")
    run.send("b-row", 10, 20, owner=b"b")
    run.running("a-row", "b-row")
    run.step()
    run.send("long", 600, 3, owner=b"b")
    run.send("shorter", 100, 3, owner=b"a")
    run.finish_right()
    prompts = [chunk.prefill.request for step in run.steps for chunk in step.chunks]
    return [name for name in dict.fromkeys(prompts) if "row" not in name]


def test_nobody_passes_who_would_leave_it_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    assert order_of_prompts(_LESS) == ["long", "shorter"]
    monkeypatch.setattr(PrefillPlanner, "_is_in_the_way", lambda *_: False)
    assert order_of_prompts(_LESS) == ["shorter", "long"]


def test_who_leaves_it_room_passes() -> None:
    assert order_of_prompts(_MORE) == ["shorter", "long"]
