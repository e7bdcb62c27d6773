"""Which prompts begin: who would have the memory to itself does not pass who came before it."""

from tests.core.short import Short, id_of

# Enough for three short rows, or for the long one alone.
_MEMORY = 12_500


def served_before(run: Short) -> None:
    """Key a had the machine of late, so it is b's turn."""
    run.send("before", 8, 1, owner=b"a")
    run.finish()


def test_a_long_prompt_does_not_shut_out_a_smaller_one_that_came_before() -> None:
    run = Short(_MEMORY)
    served_before(run)
    run.send("three", 10, 20, owner=b"a", n=3)
    run.now += 0.001
    run.send("long", 600, 20, owner=b"b")
    begun = len(run.steps)
    run.running("three")
    prompts = [chunk.prefill.request for step in run.steps[begun:] for chunk in step.chunks]
    assert set(prompts) == {"three"}
    run.finish_right()


def test_where_both_fit_it_is_read_in_its_turn() -> None:
    run = Short(4 * _MEMORY)
    served_before(run)
    run.send("three", 10, 20, owner=b"a", n=3)
    run.now += 0.001
    run.send("long", 600, 20, owner=b"b")
    begun = len(run.steps)
    run.step()
    assert run.steps[begun].chunks[0].prefill == id_of("long")
    run.finish_right()
