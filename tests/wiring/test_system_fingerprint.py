"""The name of what computes an answer: it stays over restarts and changes with what counts."""

import shutil
from pathlib import Path

import mlx.core as mx
import pytest
from msgspec.structs import replace

from omlx_server.compute.model import fingerprint
from omlx_server.models.locate import Located
from omlx_server.settings import Settings
from omlx_server.settings.model_sections import KvCacheSettings
from omlx_server.wiring.model_factory import InstanceFactory
from tests.tiny_models import save_tiny

SETTINGS = Settings()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "tiny"
    save_tiny(path, "llama")
    return path


def name_of(path: Path, settings: Settings = SETTINGS) -> str:
    return InstanceFactory(settings).system_fingerprint(Located(path, ("tiny",)))


def kept(cold_dir: Path, *, hot_only: bool) -> Settings:
    cache = replace(SETTINGS.cache, cold_dir=cold_dir, hot_cache_only=hot_only)
    return replace(SETTINGS, cache=cache)


def test_it_is_a_short_name_that_stays(model: Path, tmp_path: Path) -> None:
    """Whatever the directory is called, and however blocks are kept."""
    name = name_of(model)
    assert name.startswith("fp_") and len(name) == 15
    moved = shutil.copytree(model, tmp_path / "moved")
    assert name_of(moved) == name
    for hot_only in (True, False):
        assert name_of(model, kept(tmp_path / "kv", hot_only=hot_only)) == name
    assert not (tmp_path / "kv").exists()


def test_other_weights_have_another_name(model: Path, tmp_path: Path) -> None:
    other = shutil.copytree(model, tmp_path / "other")
    file = str(other / "model.safetensors")
    weights = mx.load(file)
    assert isinstance(weights, dict)
    changed = {key: array * 1.01 for key, array in weights.items()}
    mx.save_safetensors(file, changed, metadata={"format": "mlx"})
    assert name_of(other) != name_of(model)


def test_another_form_of_keys_and_values_has_another_name(model: Path) -> None:
    forms = [
        KvCacheSettings(),
        KvCacheSettings("affine", 4),
        KvCacheSettings("affine", 8),
        KvCacheSettings("rotated", 4),
    ]
    names = [name_of(model, replace(SETTINGS, kv_cache=form)) for form in forms]
    assert len(set(names)) == len(forms)


def test_another_version_has_another_name(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = name_of(model)
    monkeypatch.setattr(fingerprint, "__version__", "0.0.0")
    assert name_of(model) != before
