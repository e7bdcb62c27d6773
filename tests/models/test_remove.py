"""Models leave the disk whole, and nothing else does."""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from omlx_server.errors import ModelUnavailable
from omlx_server.models.hub import hub as hub_module
from omlx_server.models.hub.hub import Hub
from omlx_server.models.installed import installed_models
from omlx_server.models.remove import freed_by, remove
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
    size = freed_by(model)
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
