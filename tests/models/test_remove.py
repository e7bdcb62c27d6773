"""Models leave the disk whole, and nothing else does."""

import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from omlx_server.errors import ModelUnavailable
from omlx_server.models import remove as remove_module
from omlx_server.models.hub import hub as hub_module
from omlx_server.models.hub.download import lock_of
from omlx_server.models.hub.hub import Hub
from omlx_server.models.installed import installed_models
from omlx_server.models.remove import disk_bytes, remove, size_of
from tests.models.directories import Places, make, make_cached

NOBODY = 65534


def test_out_of_a_directory(tmp_path: Path) -> None:
    root = tmp_path / "models"
    make(root / "acme" / "m", weights=1000)
    make(root / "plain")
    model = installed_models(Places([root]))[0]
    assert remove(model, [root]) >= 1000
    assert [path.name for path in root.iterdir()] == ["plain"]


def test_out_of_the_cache_with_all_its_blobs(hub: Hub) -> None:
    other = make_cached(hub.root, "acme/other")
    snapshot = make_cached(hub.root, "acme/m")
    blobs = hub.folder("acme/m") / "blobs"
    blobs.mkdir()
    (snapshot / "model.safetensors").rename(blobs / "abc")
    (snapshot / "model.safetensors").symlink_to(blobs / "abc")
    (model,) = (m for m in installed_models(Places([], True)) if m.names[0] == "acme/m")
    size = disk_bytes(model.path)
    assert size >= 10 + len(json.dumps({}))
    assert remove(model, []) == size
    assert not hub.folder("acme/m").exists()
    assert other.is_dir()


@contextmanager
def as_another_user() -> Iterator[None]:
    """Root may remove whatever there is."""
    mine = os.geteuid()
    os.seteuid(NOBODY if mine == 0 else mine)
    try:
        yield
    finally:
        os.seteuid(mine)


def test_what_stays_in_the_cache_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as directory:  # tmp_path is closed to others
        Path(directory).chmod(0o755)
        hub = Hub(Path(directory) / "hub")
        monkeypatch.setattr(hub_module, "HUB", hub)
        snapshot = make_cached(hub.root, "acme/m")
        (model,) = installed_models(Places([], True))
        snapshot.chmod(0o555)
        with as_another_user(), pytest.raises(ModelUnavailable, match="can't be removed: Perm"):
            remove(model, [])
        snapshot.chmod(0o755)
        assert (snapshot / "config.json").is_file()
        remove(model, [])
        assert not hub.folder("acme/m").exists()


def test_what_never_finished_leaves_the_cache_too(hub: Hub) -> None:
    blobs = hub.folder("acme/m") / "blobs"
    blobs.mkdir(parents=True)
    (blobs / "abc.omlx.incomplete").write_bytes(b"w" * 500)
    (model,) = installed_models(Places([], True))
    assert remove(model, []) == 500
    assert not hub.folder("acme/m").exists()


def test_an_unfinished_download_goes_with_its_parts(tmp_path: Path) -> None:
    make(tmp_path / ".downloads" / "acme" / "m")
    (tmp_path / ".downloads" / ".parts").mkdir()
    (model,) = installed_models(Places([tmp_path]))
    remove(model, [tmp_path])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("in_cache", [True, False])
def test_what_is_being_downloaded_stays(hub: Hub, tmp_path: Path, *, in_cache: bool) -> None:
    root = tmp_path / "models"
    make_cached(hub.root, "acme/m") if in_cache else make(root / ".downloads" / "acme" / "m")
    lock = lock_of("acme/m", None if in_cache else root)
    lock.parent.mkdir(parents=True)
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        (model,) = installed_models(Places([root], True))
        with pytest.raises(ModelUnavailable, match="acme/m is being downloaded"):
            remove(model, [root])
        assert (model.path / "config.json").is_file()
    remove(model, [root])
    assert not model.path.exists()


def test_another_models_download_keeps_its_parts(tmp_path: Path) -> None:
    (model,) = installed_models(Places([make(tmp_path / "m").parent]))
    lock = lock_of("acme/other", tmp_path)
    lock.parent.mkdir(parents=True)
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        remove(model, [tmp_path])
        assert lock.exists()


def test_what_somebody_else_removes_meanwhile_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (model,) = installed_models(Places([make(tmp_path / "m").parent]))
    size_before = size_of(model.path)

    def size_then_gone(directory: Path) -> int:
        shutil.rmtree(directory)
        return size_before

    monkeypatch.setattr(remove_module, "size_of", size_then_gone)
    with pytest.raises(ModelUnavailable, match="can't be removed: No such file"):
        remove(model, [tmp_path])
    assert not list(tmp_path.iterdir())
    (model,) = installed_models(Places([make(tmp_path / "m").parent]))
    monkeypatch.setattr(remove_module, "size_of", lambda directory: directory.rename("/no/where"))
    with pytest.raises(ModelUnavailable, match="can't be removed"):
        remove(model, [tmp_path])


def test_links_to_elsewhere_stay(tmp_path: Path) -> None:
    root = tmp_path / "models"
    real = make(tmp_path / "elsewhere" / "m")
    root.mkdir()
    (root / "m").symlink_to(real)
    (root / "acme").symlink_to(tmp_path / "elsewhere")
    for model in installed_models(Places([root])):
        with pytest.raises(ModelUnavailable, match=r"outside of models\.dirs"):
            remove(model, [root])
    assert (real / "config.json").is_file()
    (root / "acme").unlink()
    (model,) = installed_models(Places([root]))
    with pytest.raises(ModelUnavailable, match=r"outside of models\.dirs"):
        remove(model, [tmp_path / "other"])


def test_what_the_disk_refuses_is_no_mistake_of_the_user(tmp_path: Path) -> None:
    (model,) = installed_models(Places([make(tmp_path / "models" / "m").parent]))
    shutil.rmtree(model.path)
    with pytest.raises(ModelUnavailable, match="can't be removed") as caught:
        remove(model, [tmp_path / "models"])
    assert caught.value.exit_code == 1
