"""A file is replaced whole, or stays as it is."""

import stat
from pathlib import Path

import pytest

from omlx_server.settings.whole_file import replacing


@pytest.mark.parametrize("mode", [0o600, 0o644])
def test_it_has_its_rights_and_all_of_its_text(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "f"
    for text in (b"one", b"two"):
        with replacing(path, mode) as file:
            file.write(text)
        assert path.read_bytes() == text
        assert stat.S_IMODE(path.stat().st_mode) == mode
    assert list(tmp_path.iterdir()) == [path]


def test_where_writing_fails_it_stays_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"before")
    with pytest.raises(KeyError), replacing(path, 0o600) as file:
        file.write(b"half of")
        raise KeyError
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]
