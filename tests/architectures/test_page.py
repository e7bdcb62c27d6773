"""The page of architectures is about this mlx-lm, all of it, and tells of nothing that is wrong."""

from importlib.metadata import version

from tests.campaigns import architectures


def test_the_page_has_every_architecture_of_this_mlx_lm() -> None:
    """Another version of mlx-lm needs another run: scripts/campaign architectures --write."""
    about, rows = architectures.written()
    assert about == f"mlx-lm {version('mlx-lm')}"
    assert [row[0] for row in rows] == list(architectures.ALL)


def test_every_row_is_right() -> None:
    _, rows = architectures.written()
    for name, together, reuse, right, difference in rows:
        if name in architectures.REFUSED:
            assert together.startswith("not served: "), name
            continue
        count, of, answers = right.split()
        assert (count, of) == (answers, "of") and int(count) > 0, name
        assert float(difference) < architectures.TOLERANCE, name
        assert together and reuse, name
