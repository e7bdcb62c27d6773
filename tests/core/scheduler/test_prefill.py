"""Who may pass a prompt that is next and finds no room."""

from tests.core.short import Short

# Enough for three short rows, or for the long one alone.
_MEMORY = 12_500


def row_and_long(memory: int) -> Short:
    """Owner a has a row; b's long prompt is next, and a's short one waits behind it."""
    run = Short(memory)
    run.send("row", 10, 20, owner=b"a")
    run.running("row")
    run.send("long", 600, 3, owner=b"b")
    run.now += 0.001
    run.send("short", 10, 3, owner=b"a")
    return run


def order_of_prompts(run: Short) -> list[str]:
    run.finish_right()
    prompts = [chunk.prefill.request for step in run.steps for chunk in step.chunks]
    return [name for name in dict.fromkeys(prompts) if name != "row"]


def test_nobody_passes_who_would_leave_it_no_room() -> None:
    assert order_of_prompts(row_and_long(_MEMORY)) == ["long", "short"]


def test_who_leaves_it_room_passes() -> None:
    """Beside the row there is no room for the long one, beside the short one there is."""
    run = row_and_long(_MEMORY)
    run.watch.limit = 13_500
    run.send("last", 10, 3, owner=b"a")
    assert order_of_prompts(run)[0] != "last"
