"""Several settings that are changed in one config file at once."""

from pathlib import Path

import pytest

from omlx_server.errors import ConfigError
from omlx_server.settings.edit import check_value, set_keys

TEXT = "# mine\n[scheduler]\nmax_queue = 32  # enough\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "omlx.toml"
    path.write_text(TEXT)
    return path


def test_all_are_written_and_comments_stay(file: Path) -> None:
    set_keys(file, {"scheduler.max_queue": "7", "models.overrides.a/b.ttl": "5"})
    text = file.read_text()
    assert "# mine" in text and "max_queue = 7  # enough" in text and "ttl = 5" in text


def test_only_together_they_have_to_be_valid(file: Path) -> None:
    pair = {"scheduler.max_batch_size": "128", "scheduler.max_batched_tokens": "128"}
    set_keys(file, pair)
    assert "max_batched_tokens = 128" in file.read_text()


@pytest.mark.parametrize("bad", [("logging.level", "loud"), ("scheduler.max_batched_tokens", "1")])
def test_of_one_that_is_wrong_none_is_written(file: Path, bad: tuple[str, str]) -> None:
    with pytest.raises(ConfigError):
        set_keys(file, {"scheduler.max_queue": "7", bad[0]: bad[1]})
    assert file.read_text() == TEXT


def test_a_new_file_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "below" / "config.toml"
    set_keys(path, {"scheduler.max_queue": "7"})
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_value_is_checked_without_a_file() -> None:
    check_value("scheduler.max_queue", "7")
    for key, text in (("scheduler.max_queue", "0"), ("scheduler.queue", "7")):
        with pytest.raises(ConfigError, match=key.partition(".")[0]):
            check_value(key, text)
