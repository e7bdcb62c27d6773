"""The page of architectures is about this mlx-lm, all of it, and tells of nothing that is wrong."""

from importlib.metadata import version

from tests.architectures.configs import COPIED
from tests.campaigns import architectures


def test_the_page_has_every_architecture_of_this_mlx_lm() -> None:
    """Another version of mlx-lm needs another run: scripts/campaign architectures --write."""
    about, rows = architectures.written()
    assert about == f"mlx-lm {version('mlx-lm')}"
    assert [row[0] for row in rows] == list(architectures.ALL)


def test_the_page_names_who_holds_keys_and_values_in_copies() -> None:
    _, _, rest = architectures.PAGE.read_text(encoding="utf-8").partition("| held in copies |")
    rows = rest.partition("\n\n")[0].splitlines()[2:]
    assert {row.split("|")[1].strip() for row in rows} == COPIED
    assert all(len(row.split("|")[2]) > 20 for row in rows)


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
