"""Settings of a running server that are changed by its config file: without the server."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from omlx_server.api.settings_editor import SettingsChanged
from omlx_server.errors import BadRequest, Conflict
from omlx_server.process.reload import Reloader
from omlx_server.process.settings_editor import ConfigEditor
from omlx_server.settings import load
from omlx_server.settings.changes import Changes
from omlx_server.settings.sections import KEYS, Settings
from omlx_server.settings.types import Secret
from omlx_server.settings.values import SECRETS, value_of


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


class Applied:
    """Notes what is applied."""

    def __init__(self) -> None:
        self.keys: list[str] = []

    async def __call__(self, changed: Changes) -> None:
        self.keys += [change.key for change in changed.applied]


def editor(applied: Applied, **fallbacks: str) -> ConfigEditor:
    loaded = load(fallbacks={key.replace("__", "."): value for key, value in fallbacks.items()})
    return ConfigEditor(loaded, Reloader(loaded, lambda _: None, [applied], lambda _: None))


def change(**values: Any) -> tuple[SettingsChanged, list[str]]:
    applied = Applied()
    named = {key.replace("__", "."): value for key, value in values.items()}
    return asyncio.run(editor(applied).change(named)), applied.keys


def test_without_a_file_one_is_made(home: Path) -> None:
    done, applied = change(scheduler__max_queue=7)
    assert done["applied"] == applied == ["scheduler.max_queue"]
    file = home / ".config" / "omlx_server" / "config.toml"
    assert "max_queue = 7" in file.read_text()
    assert asyncio.run(editor(Applied()).listed())["file"] == str(file)


def test_what_up_has_chosen_can_be_changed(home: Path) -> None:
    applied = Applied()
    own = editor(applied, logging__level="warning")

    def level() -> tuple[object, str]:
        found = {one["key"]: one for one in asyncio.run(own.listed())["settings"]}["logging.level"]
        return found["value"], found["origin"].partition(" ")[0]

    assert level() == ("warning", "fallback")
    assert asyncio.run(own.change({"logging.level": "info"}))["applied"] == applied.keys
    assert (applied.keys, level()) == (["logging.level"], ("info", "file"))


def test_without_a_file_none_is_listed() -> None:
    assert asyncio.run(editor(Applied()).listed())["file"] is None


def test_what_is_changed_by_hand_is_listed_so_and_refused() -> None:
    own = editor(Applied())
    listed = asyncio.run(own.listed())["settings"]
    by_hand = [one["key"] for one in listed if one["by_hand"]]
    assert {"server.host", "cluster.hosts", "auth.admin"} <= set(by_hand) < {*KEYS}
    for key in by_hand:
        with pytest.raises(BadRequest, match="on the server's machine"):
            asyncio.run(own.change({key: "x"}))


def test_a_setting_that_is_a_secret_is_treated_as_one() -> None:
    settings = Settings()
    secret = {key for key in KEYS if isinstance(value_of(settings, key), Secret)}
    assert secret and secret < set(SECRETS)
    listed = asyncio.run(editor(Applied()).listed())["settings"]
    assert not {one["key"] for one in listed} & set(SECRETS)


@pytest.mark.parametrize("value", [3, "3", 3.0])
def test_a_small_size_without_its_unit_is_refused_with_the_likely_meaning(
    value: object, home: Path
) -> None:
    with pytest.raises(BadRequest, match=r"\(write 3(\.0)?GB or 3(\.0)?B\)"):
        asyncio.run(editor(Applied()).change({"memory.limit": value}))
    assert not (home / ".config").exists()


def test_what_the_environment_sets_is_a_conflict(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMLX_SCHEDULER__MAX_QUEUE", "9")
    with pytest.raises(Conflict, match=r"environment \(OMLX_SCHEDULER__MAX_QUEUE\)"):
        change(scheduler__max_queue=7)
    assert not (home / ".config").exists()


def test_a_file_that_cannot_be_written_is_a_conflict(home: Path) -> None:
    (home / ".config").write_text("in its place")
    with pytest.raises(Conflict, match="can't be"):
        change(scheduler__max_queue=7)


def test_two_changes_at_once_are_both_written(home: Path) -> None:
    async def both() -> None:
        one = editor(Applied())
        await asyncio.gather(
            one.change({"scheduler.max_queue": 7}), one.change({"logging.level": "debug"})
        )

    asyncio.run(both())
    text = (home / ".config" / "omlx_server" / "config.toml").read_text()
    assert "max_queue = 7" in text and 'level = "debug"' in text
