"""GGUF models of a hub: chosen by a tag, beside each other, found again and removed alone."""

import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from omlx_server.errors import ModelUnavailable
from omlx_server.models import layout
from omlx_server.models.hub.download import DOWNLOADS
from omlx_server.models.hub.hub import Hub
from omlx_server.models.installed import Installed, ModelOrigin, installed_models
from omlx_server.models.locate import find_here, find_installed, locate
from omlx_server.models.progress import Silent
from omlx_server.models.pull import pull
from omlx_server.models.remove import remove
from tests.gguf_models import write_model
from tests.models import fake_hub
from tests.models.directories import Places
from tests.models.fake_hub import Faults, HubAt
from tests.models.tiny_gguf import Tiny

NOWHERE = "http://127.0.0.1:9"
REPO = "acme/tiny-GGUF"
Q4, Q8 = "tiny-Q4_K_M.gguf", "tiny-q8_0.gguf"
PULL = f"""
import sys
from pathlib import Path
from omlx_server.models.hub import hub
from omlx_server.models.hub.download import download
from omlx_server.models.progress import Silent
hub.HUB = hub.Hub(Path(sys.argv[1]) / "hub", sys.argv[2], ())
models_dir = Path(sys.argv[1]) / "models" if sys.argv[3] == "directory" else None
download({REPO!r}, models_dir, Silent(), tag="Q8_0")
"""


@pytest.fixture(params=["cache", "directory"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def places(kind: str, tmp_path: Path) -> Places:
    return Places([tmp_path / "models"], use_hf_cache=kind == "cache")


@pytest.fixture
def files(tiny: Tiny) -> dict[str, bytes]:
    """The same model twice, one with bytes behind it that nobody reads."""
    whole = tiny.gguf.read_bytes()
    others = dict.fromkeys(("mmproj-F16.gguf", "imatrix-Q4_K_M.gguf"), b"no model")
    return {Q4: whole, Q8: whole + bytes(2_000_000), "config.json": b"{}", **others}


def large(files: dict[str, bytes]) -> frozenset[str]:
    return frozenset(name for name in files if name.endswith(".gguf"))


def fetched(asked: list[str]) -> set[str]:
    names = (line.partition(" ")[0].rpartition("/")[2] for line in asked if "/resolve/" in line)
    return set(names)


def real_file(path: Path) -> Path:
    [file] = layout.gguf_files(path)
    return file


def names_here(places: Places) -> set[str]:
    return {model.names[0] for model in installed_models(places)}


def listed(places: Places, tag: str) -> Installed:
    [model] = [one for one in installed_models(places) if one.names[0] == f"{REPO}:{tag}"]
    return model


def test_two_tags_lie_beside_each_other(
    places: Places, files: dict[str, bytes], hub_at: HubAt
) -> None:
    with fake_hub.serve(REPO, files, large(files)) as (address, asked):
        hub_at(address)
        first = pull(f"hf://{REPO}:q4_k_m", places, Silent())
        assert fetched(asked) == {Q4}
        second = pull(f"https://huggingface.co/{REPO}/blob/main/{Q8}", places, Silent())
        again = pull(REPO, places, Silent())
    assert first.model.names[0] == again.model.names[0] == f"{REPO}:Q4_K_M"
    assert (again.fetched_bytes, again.model.path) == (0, first.model.path)
    assert second.fetched_bytes == len(files[Q8])
    for done, name in ((first, Q4), (second, Q8)):
        assert real_file(done.model.path).read_bytes() == files[name]
        assert (done.model.path / "tokenizer.json").is_file()
    assert names_here(places) == {f"{REPO}:Q4_K_M", f"{REPO}:Q8_0"}
    expected = ModelOrigin.HUB if places.use_hf_cache else ModelOrigin.DIRECTORY
    assert {model.source for model in installed_models(places)} == {expected}
    assert not any(model.problem for model in installed_models(places))


def test_it_is_found_without_a_network(
    places: Places, files: dict[str, bytes], hub_at: HubAt
) -> None:
    with fake_hub.serve(REPO, files, large(files)) as (address, _):
        hub_at(address)
        done = locate(f"{REPO}:Q4_K_M", places)
    hub_at(NOWHERE)
    for name in (REPO, f"{REPO}:q4_k_m", f"hf.co/{REPO}:Q4_K_M", "tiny-GGUF:Q4_K_M"):
        model = find_here(name, places)
        assert model is not None and model.path == done.path, name
    assert find_installed(f"{REPO}:Q8_0", places) is None
    assert not pull(f"{REPO}:Q4_K_M", places, Silent()).is_checked


def test_a_killed_download_goes_on(
    kind: str, places: Places, files: dict[str, bytes], hub_at: HubAt, tmp_path: Path
) -> None:
    with fake_hub.serve(REPO, files, large(files), Faults(rate=2e5)) as (address, asked):
        arguments = [sys.executable, "-c", PULL, str(tmp_path), address, kind]
        child = subprocess.Popen(arguments)
        while not any(Q8 in line for line in asked):
            assert child.poll() is None
            time.sleep(0.01)
        child.kill()
        assert child.wait() == -signal.SIGKILL
    with fake_hub.serve(REPO, files, large(files)) as (address, _):
        hub_at(address)
        [rest] = installed_models(places)
        assert "not all of it is here" in rest.problem
        pull(f"{REPO}:Q4_K_M", places, Silent())
        done = pull(f"{REPO}:Q8_0", places, Silent())
    assert real_file(done.model.path).read_bytes() == files[Q8]
    assert names_here(places) == {f"{REPO}:Q4_K_M", f"{REPO}:Q8_0"}
    assert not list(tmp_path.rglob(f"{DOWNLOADS}/acme"))
    assert not list(tmp_path.rglob("*.incomplete"))


def test_damaged_bytes_are_fetched_again(
    places: Places, files: dict[str, bytes], hub_at: HubAt
) -> None:
    with fake_hub.serve(REPO, files, large(files), Faults(damaged=1)) as (address, _):
        hub_at(address)
        file = real_file(pull(f"{REPO}:Q4_K_M", places, Silent()).model.path)
        assert file.read_bytes() == files[Q4]
        file.write_bytes(files[Q4][:-1] + b"\1")
        done = pull(f"{REPO}:Q4_K_M", places, Silent())
    assert done.fetched_bytes == len(files[Q4])
    assert real_file(done.model.path).read_bytes() == files[Q4]


REFUSED = {
    "has no GGUF file of Q4_K_S": (
        ("a-Q8_0.gguf", "a-Q4_K_M.gguf"),
        f"Take one of {REPO}:Q4_K_M, Q8_0",
    ),
    "has no form in MLX as IQ4_XS": (("a-Q8_0.gguf", "a-IQ4_XS.gguf"), f"{REPO}:Q8_0"),
    "has 2 GGUF models": (("a-Q8_0.gguf", "a-Q4_0.gguf"), f"{REPO}:Q4_0, Q8_0"),
    "has several models of Q4_0": (("a-Q4_0.gguf", "b-Q4_0.gguf"), "by hand"),
    "has no Q4_0/a-00002-of-00002.gguf": (("Q4_0/a-00001-of-00002.gguf",), "mlx-community/tiny"),
    "has no GGUF files that are named": (("config.json", "model.safetensors"), f"a tag: {REPO}"),
}
ASKED = {"has no GGUF file of Q4_K_S": ":Q4_K_S", "has no form in MLX as IQ4_XS": ":iq4_xs"}
ASKED |= {"has no GGUF files that are named": ":Q4_0"}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_can_not_be_chosen_is_refused_before_the_download(
    tmp_path: Path, hub_at: HubAt, reason: str
) -> None:
    names, hint = REFUSED[reason]
    with fake_hub.serve(REPO, dict.fromkeys(names, b"x"), frozenset(names)) as (address, asked):
        hub_at(address)
        with pytest.raises(ModelUnavailable) as caught:
            pull(f"{REPO}{ASKED.get(reason, '')}", Places([tmp_path]), Silent())
    assert reason in caught.value.message and hint in caught.value.hint
    assert not fetched(asked) and not list(tmp_path.iterdir())


def test_a_family_that_is_not_served_is_refused_before_the_download(
    tmp_path: Path, files: dict[str, bytes], hub_at: HubAt
) -> None:
    about = {"architecture": "mamba9", "total": 1}
    with fake_hub.serve(REPO, files, large(files), gguf=about) as (address, asked):
        hub_at(address)
        with pytest.raises(ModelUnavailable, match="is of the architecture 'mamba9'"):
            pull(REPO, Places([tmp_path]), Silent())
    assert not fetched(asked)


def test_weights_for_mlx_go_before_gguf_files(
    tmp_path: Path, files: dict[str, bytes], hub_at: HubAt
) -> None:
    config = b'{"architectures": ["LlamaForCausalLM"], "vocab_size": 9}'
    mixed = {**files, "config.json": config, "model.safetensors": b"w"}
    with fake_hub.serve(REPO, mixed, large(mixed) | {"model.safetensors"}) as (address, _):
        hub_at(address)
        model = pull(REPO, Places([tmp_path]), Silent()).model
        assert model.path == tmp_path / REPO and (model.path / "model.safetensors").is_file()
        pull(f"{REPO}:Q4_K_M", Places([tmp_path]), Silent())
    assert (model.path / "model.safetensors").is_file() and (model.path / Q4).is_file()
    assert find_installed(REPO, Places([tmp_path])) == model


def test_a_revision_and_a_tag(tmp_path: Path, files: dict[str, bytes], hub_at: HubAt) -> None:
    places, revisions = Places([tmp_path], use_hf_cache=True), frozenset({"v1"})
    with fake_hub.serve(REPO, files, large(files), revisions=revisions) as (address, _):
        hub_at(address)
        pull(f"{REPO}:Q4_K_M@v1", places, Silent())
    assert (tmp_path / f"{REPO}@v1" / Q4).is_file()
    assert names_here(places) == {f"{REPO}@v1:Q4_K_M"}


# --- Parts, other programs, removal --------------------------------------------------------------


def test_a_model_of_several_parts_comes_and_goes(
    places: Places, hub_at: HubAt, tmp_path: Path
) -> None:
    first = write_model(tmp_path / "made", "qwen3", most_tensors=9).file
    parts = {f"Q8_0/{file.name}": file.read_bytes() for file in first.parent.iterdir()}
    with fake_hub.serve(REPO, parts, large(parts)) as (address, _):
        hub = hub_at(address)
        done = pull(REPO, places, Silent())
    assert len(layout.gguf_links(done.model.path)) == 3
    model = listed(places, "Q8_0")
    assert not model.problem and model.path == done.model.path
    assert remove(model, places.dirs) == sum(map(len, parts.values()))
    assert not (places.dirs[0] / REPO).exists() and not hub.folder(REPO).exists()
    assert not installed_models(places) and not done.model.path.exists()


def test_one_tag_is_removed_and_the_other_stays(
    places: Places, files: dict[str, bytes], hub_at: HubAt, tmp_path: Path
) -> None:
    with fake_hub.serve(REPO, files, large(files)) as (address, _):
        hub = hub_at(address)
        for tag in ("Q4_K_M", "Q8_0"):
            pull(f"{REPO}:{tag}", places, Silent())
    assert remove(listed(places, "Q4_K_M"), places.dirs) == len(files[Q4])
    assert names_here(places) == {f"{REPO}:Q8_0"}
    sizes = {path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()}
    assert len(files[Q8]) in sizes and len(files[Q4]) not in sizes
    remove(listed(places, "Q8_0"), places.dirs)
    assert not hub.folder(REPO).exists() and not (places.dirs[0] / REPO).exists()
    assert not installed_models(places)


def keep_in_cache(cache: Path, repo_id: str, commit: str, name: str, content: bytes) -> Path:
    """As llama.cpp does."""
    folder = Hub(cache).folder(repo_id)
    blob = folder / "blobs" / hashlib.sha256(content).hexdigest()
    link = folder / "snapshots" / commit / name
    for path in (blob, link):
        path.parent.mkdir(parents=True, exist_ok=True)
    blob.write_bytes(content)
    link.symlink_to(blob)
    return link


@pytest.mark.parametrize("is_copy", [False, True])
def test_what_other_programs_fetched_into_a_hubs_cache_is_found(
    hub: Hub, tmp_path: Path, files: dict[str, bytes], *, is_copy: bool
) -> None:
    root = tmp_path / "drive" / "hub" if is_copy else hub.root
    for commit, name in (("a", Q4), ("a", Q8), ("b", Q8), ("b", "mmproj-F16.gguf")):
        keep_in_cache(root, REPO, commit, name, files[name])
    keep_in_cache(root, "acme/other", "a", "model.gguf", files[Q4])
    dirs = [tmp_path / "drive"] if is_copy else []
    places = Places([*dirs, tmp_path / "models"], use_hf_cache=True)
    assert names_here(places) == {f"{REPO}:Q4_K_M", f"{REPO}:Q8_0", "acme/model"}
    model = find_installed(f"{REPO}:Q8_0", places)
    assert model is not None and real_file(model.path).parent.name == "blobs"
    remove(listed(places, "Q8_0"), places.dirs)
    assert names_here(places) == {f"{REPO}:Q4_K_M", "acme/model"}
    [folder] = tmp_path.rglob("models--acme--tiny-GGUF")
    assert {path.name for path in folder.rglob("*.gguf")} == {Q4, "mmproj-F16.gguf"}
    assert len(list((folder / "blobs").iterdir())) == 2


def test_an_unfit_file_of_the_cache_can_be_removed(hub: Hub, tmp_path: Path) -> None:
    keep_in_cache(hub.root, REPO, "a", Q4, b"no head")
    places = Places([tmp_path / "models"], use_hf_cache=True)
    model = listed(places, "Q4_K_M")
    assert "can't be served" in model.problem and model.source is ModelOrigin.HUB
    assert remove(model, places.dirs) == len(b"no head")
    assert not hub.folder(REPO).exists()


def test_the_newest_snapshot_of_a_type_is_served(
    hub: Hub, tmp_path: Path, files: dict[str, bytes]
) -> None:
    for seconds, commit in ((1, "b"), (3, "a"), (2, "c")):
        content = files[Q4] + bytes(seconds)
        snapshot = keep_in_cache(hub.root, REPO, commit, Q4, content).parent
        os.utime(snapshot, (seconds, seconds))
    (snapshot / "note.txt").write_text("stays")
    elsewhere = tmp_path / "elsewhere.gguf"
    elsewhere.write_bytes(files[Q4])
    (snapshot.parent / "d").mkdir()
    (snapshot.parent / "d" / Q4).symlink_to(elsewhere)
    os.utime(snapshot.parent / "d", (0, 0))
    os.utime(snapshot, (2, 2))
    model = listed(Places([tmp_path / "models"], use_hf_cache=True), "Q4_K_M")
    assert real_file(model.path).stat().st_size == len(files[Q4]) + 3
    remove(model, ())
    assert not [path for path in hub.root.rglob("*") if path.is_file() and path.name != "note.txt"]
    assert elsewhere.is_file()
