"""Models of Ollama, LM Studio and llama.cpp are found under the names that they have there."""

import hashlib
import json
from pathlib import Path

import pytest

from omlx_server.errors import ModelUnavailable
from omlx_server.models.installed import ModelOrigin, installed_models
from omlx_server.models.locate import find_installed
from tests.gguf_models import write_model
from tests.models.directories import Places, make

PROGRAMS = ("ollama", "lm-studio", "llama.cpp")
BLOBS = "application/vnd.ollama.image"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    for variable in ("OLLAMA_MODELS", "LLAMA_CACHE"):
        monkeypatch.delenv(variable, raising=False)
    return tmp_path


def places_of(home: Path, programs: tuple[str, ...] = PROGRAMS) -> Places:
    (home / "own").mkdir(exist_ok=True)
    return Places([home / "own"], other_programs=programs)


def keep_in_ollama(home: Path, name: str, architecture: str = "qwen3") -> Path:
    store = home / ".ollama" / "models"
    manifest, blobs = store / "manifests" / name, store / "blobs"
    for folder in (manifest.parent, blobs):
        folder.mkdir(parents=True, exist_ok=True)
    file = write_model(blobs, architecture).file
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    blob = file.rename(blobs / f"sha256-{digest}")
    layers = [
        {"mediaType": f"{BLOBS}.template", "digest": f"sha256:{'0' * 64}"},
        {"mediaType": f"{BLOBS}.model", "digest": f"sha256:{digest}", "size": 1},
    ]
    manifest.write_text(json.dumps({"schemaVersion": 2, "layers": layers}))
    return blob


@pytest.mark.parametrize(
    ("manifest", "names"),
    [
        ("registry.ollama.ai/library/qwen3/latest", ("qwen3", "qwen3:latest")),
        ("registry.ollama.ai/library/qwen3/0.6b", ("qwen3:0.6b",)),
        ("registry.ollama.ai/someone/tuned/q4", ("someone/tuned:q4",)),
        ("hf.co/org/tiny-GGUF/Q4_K_M", ("hf.co/org/tiny-GGUF:Q4_K_M",)),
    ],
)
def test_ollamas_names_are_kept(home: Path, manifest: str, names: tuple[str, ...]) -> None:
    blob = keep_in_ollama(home, manifest)
    before = {path: path.stat().st_mtime_ns for path in (home / ".ollama").rglob("*")}
    [model] = installed_models(places_of(home))
    assert (model.names, model.source, model.problem) == (names, ModelOrigin.OLLAMA, "")
    for name in names:
        found = find_installed(name, places_of(home))
        assert found is not None and (found.path / "tokenizer.json").is_file()
        assert next(found.path.glob("omlx-*.gguf")).resolve() == blob
    assert {path: path.stat().st_mtime_ns for path in (home / ".ollama").rglob("*")} == before


def test_lm_studios_folders_have_both_kinds(home: Path) -> None:
    folder = home / ".lmstudio" / "models" / "org"
    make(folder / "mlx-model")
    (folder / "gguf-model").mkdir()
    write_model(folder / "gguf-model", "llama")
    models = {model.names[0]: model for model in installed_models(places_of(home))}
    assert models.keys() == {"org/mlx-model", "org/tiny-llama"}
    assert {model.source for model in models.values()} == {ModelOrigin.LM_STUDIO}


def test_llama_cpps_cache_is_searched(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_CACHE", str(home / "cache"))
    (home / "cache").mkdir()
    write_model(home / "cache", "llama")
    [model] = installed_models(places_of(home))
    assert (model.names, model.source) == (("tiny-llama",), ModelOrigin.LLAMA_CPP)


@pytest.mark.parametrize("program", PROGRAMS)
def test_each_program_can_be_left_out(home: Path, program: str) -> None:
    keep_in_ollama(home, "registry.ollama.ai/library/a/latest")
    for folder in (".lmstudio/models", ".cache/llama.cpp"):
        (home / folder).mkdir(parents=True)
        write_model(home / folder, "llama")
    others = tuple(name for name in PROGRAMS if name != program)
    assert len(installed_models(places_of(home))) == 3
    assert len(installed_models(places_of(home, others))) == 2
    assert not installed_models(places_of(home, ()))


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{",
        "[" * 100_000,
        '{"layers": 3}',
        '{"layers": [3, {"mediaType": "application/vnd.ollama.image.model"}]}',
        '{"layers": [{"mediaType": "application/vnd.ollama.image.model", '
        '"digest": "sha256:../../../../etc/passwd"}]}',
        '{"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": ["sha256"]}]}',
    ],
)
def test_a_bad_manifest_is_no_model(home: Path, content: str) -> None:
    keep_in_ollama(home, "registry.ollama.ai/library/a/latest")
    bad = home / ".ollama/models/manifests/registry.ollama.ai/library/bad/latest"
    bad.parent.mkdir()
    bad.write_text(content)
    assert [model.names[0] for model in installed_models(places_of(home))] == ["a"]


def test_a_blob_that_is_gone_is_no_model(home: Path) -> None:
    keep_in_ollama(home, "registry.ollama.ai/library/a/latest").unlink()
    assert not installed_models(places_of(home))


def test_one_that_can_not_be_served_says_why(home: Path) -> None:
    blob = keep_in_ollama(home, "registry.ollama.ai/library/odd/latest")
    blob.write_bytes(blob.read_bytes().replace(b"qwen3", b"qwen9"))
    [model] = installed_models(places_of(home))
    assert "its architecture is 'qwen9'" in model.problem
    with pytest.raises(ModelUnavailable, match="its architecture is 'qwen9'"):
        find_installed("odd", places_of(home))
