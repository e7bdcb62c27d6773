"""Where our own files are: in the home directory, or where the XDG variables say."""

from pathlib import Path

import pytest

from omlx_server.service.systemd import Systemd
from omlx_server.settings import edit, load
from omlx_server.settings.admin_token import admin_token, token_file
from omlx_server.settings.layers import search_path
from omlx_server.settings.types import own_place

VARIABLES = {
    ".config": "XDG_CONFIG_HOME",
    ".cache": "XDG_CACHE_HOME",
    ".local/state": "XDG_STATE_HOME",
}


@pytest.fixture
def moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """All these variables are set."""
    for number, name in enumerate(VARIABLES.values()):
        monkeypatch.setenv(name, str(tmp_path / "xdg" / str(number)))
    return tmp_path / "xdg"


@pytest.mark.parametrize("usual", VARIABLES)
def test_each_variable_moves_its_directory(usual: str, moved: Path, home: Path) -> None:
    number = list(VARIABLES).index(usual)
    place = own_place(f"~/{usual}/omlx_server/a/b")
    assert place == moved / str(number) / "omlx_server" / "a" / "b"
    (home / usual / "omlx_server").mkdir(parents=True)
    assert own_place(f"~/{usual}/omlx_server/a/b") == home / usual / "omlx_server" / "a" / "b"


@pytest.mark.parametrize("value", ["", "relative/path", "~/x"])
def test_a_value_that_is_no_absolute_path_moves_nothing(
    value: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", value)
    assert own_place("~/.cache/omlx_server/kv") == home / ".cache" / "omlx_server" / "kv"


def test_all_files_follow_and_a_setting_wins(moved: Path, home: Path) -> None:
    settings = load(None, {"responses.directory": str(home / "mine")}).settings
    assert settings.models.dirs == (moved / "1" / "omlx_server" / "models",)
    assert settings.cache.cold_dir == moved / "1" / "omlx_server" / "kv"
    assert settings.responses.directory == home / "mine"
    config = moved / "0" / "omlx_server" / "config.toml"
    assert search_path()[0] == config == edit.file_to_change(None)
    assert Systemd(home).log_dir == moved / "2" / "omlx_server"
    edit.set_key(config, "server.port", "9000")
    assert load().settings.server.port == 9000
    assert admin_token({}) and token_file() == config.with_name("admin-token")
    assert not list(home.glob(".*"))


def test_what_a_user_has_stays_in_use(moved: Path, home: Path) -> None:
    (home / ".cache" / "omlx_server").mkdir(parents=True)
    settings = load().settings
    assert settings.models.dirs == (home / ".cache" / "omlx_server" / "models",)
    assert settings.cache.cold_dir == home / ".cache" / "omlx_server" / "kv"
    assert search_path()[0].is_relative_to(moved), "the config has a directory of its own"


def test_without_a_home_the_variables_are_enough(
    moved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "~nobody")
    assert own_place("~/.cache/omlx_server/kv").is_relative_to(moved)
