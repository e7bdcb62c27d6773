"""How many seconds ago a tick was."""

from omlx_server.core.blocks.ages import Ages


def test_a_tick_is_as_old_as_the_first_note_after_it() -> None:
    ages = Ages()
    for tick, now in ((5, 1.0), (5, 2.0), (9, 3.0)):
        ages.note(tick, now)
    assert [ages.age(tick, 10.0) for tick in (1, 5, 6, 9, 10)] == [9.0, 9.0, 7.0, 7.0, 0.0]


def test_of_many_notes_the_old_ones_become_sparse() -> None:
    ages = Ages()
    for tick in range(100_000):
        ages.note(tick, float(tick))
        assert len(ages) <= 1024
    for tick in (99_999, 99_900, 99_000, 50_000, 3):
        exact = 100_000.0 - tick
        assert 0.9 * exact <= ages.age(tick, 100_000.0) <= exact
