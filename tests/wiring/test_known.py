"""What is known of the disk, when several ask for it at once."""

import asyncio
from pathlib import Path

import pytest

from omlx_server.models.installed import installed_models
from omlx_server.models.locate import Located
from omlx_server.settings import Settings
from omlx_server.wiring.encoders import FoundEncoders
from omlx_server.wiring.known import KnownModels
from tests.tiny_models import save_tiny
from tests.vision_models import save_vision


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.fixture
def known(tmp_path: Path) -> KnownModels:
    """Started with one model, and `org/other` is on the disk."""
    save_tiny(tmp_path / "first", "llama")
    save_tiny(tmp_path / "models" / "org" / "other", "llama")
    return KnownModels(settings(tmp_path / "models"), located(tmp_path), FoundEncoders())


def settings(directory: Path) -> Settings:
    return Settings.of({"models": {"dirs": [str(directory)], "use_hf_cache": False}})


def located(directory: Path) -> Located:
    return Located(directory / "first", ("first",))


def names(known: KnownModels) -> list[str]:
    return [one.names[0] for one in known.known()]


def test_who_comes_while_the_disk_is_looked_at_has_what_is_found(known: KnownModels) -> None:
    async def ask() -> list[str]:
        await known.refresh()
        return names(known)

    async def scene() -> list[list[str]]:
        return await asyncio.gather(*(ask() for _ in range(3)))

    assert asyncio.run(scene()) == [["first", "org/other"]] * 3


def test_a_refresh_that_is_given_up_counts_as_none(known: KnownModels) -> None:
    async def scene() -> None:
        gone = asyncio.create_task(known.refresh())
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.wait({gone})
        assert gone.cancelled()
        await known.refresh()

    asyncio.run(scene())
    assert names(known) == ["first", "org/other"]


def test_directories_that_change_meanwhile_are_looked_at_next(
    known: KnownModels, tmp_path: Path
) -> None:
    save_tiny(tmp_path / "elsewhere" / "new", "llama")

    async def scene() -> None:
        first = asyncio.create_task(known.refresh())
        await asyncio.sleep(0)
        known.change(settings(tmp_path / "elsewhere"))
        await first
        await known.refresh()

    asyncio.run(scene())
    assert names(known) == ["first", "new"]


@pytest.mark.parametrize(
    ("more", "takes"),
    [
        ({}, True),
        ({"images": {"enabled": False}}, False),
        ({"speculation": {"mode": "heads"}}, False),
    ],
)
def test_a_model_takes_images_if_its_files_and_the_settings_let_it(
    tmp_path: Path, more: dict[str, object], takes: bool
) -> None:
    save_tiny(tmp_path / "first", "llama")
    save_vision(tmp_path / "models" / "seeing")
    own = {"models": {"dirs": [str(tmp_path / "models")], "use_hf_cache": False}}
    known = KnownModels(Settings.of(own | more), located(tmp_path), FoundEncoders())
    asyncio.run(known.refresh())
    assert [one.takes_images for one in known.known()] == [False, takes]
    known.change(settings(tmp_path / "models"))
    assert [one.takes_images for one in known.known()] == [False, True]


def test_what_can_not_be_served_is_known_with_the_reason(
    known: KnownModels, tmp_path: Path
) -> None:
    models = tmp_path / "models"
    for name in ("cut", "odd"):
        save_tiny(models / name, "llama")
    (models / "cut" / "model.safetensors").write_bytes(bytes(64))
    (models / "odd" / "config.json").write_text('{"architectures": ["WhisperModel"]}')
    asyncio.run(known.refresh())
    assert names(known) == ["first", "org/other"]
    told = {one.names[0]: (one.role.kind, one.problem) for one in known.broken()}
    assert told == {
        "cut": ("chat", "model.safetensors is cut, or no safetensors file"),
        "odd": ("unknown", "it is WhisperModel: no model to chat, to embed or to rank"),
    }
    listed = installed_models(settings(models).models)
    assert {one.names[0]: one.problem for one in listed if one.problem} == {
        name: problem for name, (_, problem) in told.items()
    }


def test_a_directory_that_is_away_is_told_once(
    known: KnownModels, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    drive = tmp_path / "drive"
    save_tiny(drive / "far", "llama")
    two = {"models": {"dirs": [str(drive), str(tmp_path / "models")], "use_hf_cache": False}}
    known.change(Settings.of(two))

    async def look() -> list[str]:
        await known.refresh(anew=True)
        return names(known)

    assert asyncio.run(look()) == ["first", "far", "org/other"]
    drive.rename(tmp_path / "unplugged")
    for _ in range(2):
        assert asyncio.run(look()) == ["first", "org/other"]
        assert known.away == {drive: "No such file or directory"}
    why = f"{drive} in models.dirs can't be read: No such file or directory."
    assert [one.getMessage() for one in caplog.records] == [
        f"{why} Its models can't be loaded now."
    ]
    (tmp_path / "unplugged").rename(drive)
    assert asyncio.run(look()) == ["first", "far", "org/other"] and not known.away
    KnownModels(settings(tmp_path / "none"), located(tmp_path), FoundEncoders())
    assert "none in models.dirs can't be read" in caplog.records[-1].getMessage()
