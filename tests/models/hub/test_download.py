"""Downloads against a hub that breaks off, lies and sends damaged bytes."""

import errno
import fcntl
import hashlib
import json
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from omlx_server.errors import ModelUnavailable
from omlx_server.models.hub import download as download_module
from omlx_server.models.hub.download import DOWNLOADS, download
from omlx_server.models.hub.hub import explained
from omlx_server.models.locate import find_here, find_installed
from omlx_server.models.progress import Silent
from omlx_server.models.pull import pull
from tests.models import fake_hub
from tests.models.directories import Places, make
from tests.models.fake_hub import COMMIT, Faults, HubAt

NOWHERE = "http://127.0.0.1:9"
REPO = "acme/tiny-4bit"
WEIGHTS = random.Random(1).randbytes(3_000_000)
FILES = {
    "config.json": b'{"architectures": ["LlamaForCausalLM"], "vocab_size": 9}',
    "tokenizer.json": b"{}",
    "model.safetensors": WEIGHTS,
    "README.md": b"no",
}
LARGE = frozenset({"model.safetensors"})
SHA256 = hashlib.sha256(WEIGHTS).hexdigest()


class Seen:
    """A Progress that keeps all."""

    def __init__(self) -> None:
        self.updates: list[tuple[str, int, int]] = []

    def update(self, stage: str, done: int, total: int) -> None:
        self.updates.append((stage, done, total))

    def stages(self) -> list[str]:
        return list(dict.fromkeys(stage for stage, _, _ in self.updates))


def weights_asked(asked: list[str]) -> list[str]:
    """The ranges of the GETs of the weights."""
    lines = [line for line in asked if "/resolve/" in line and "model.safetensors" in line]
    return [line.partition(" ")[2] for line in lines]


@pytest.fixture(params=["cache", "directory"])
def models_dir(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return None if request.param == "cache" else tmp_path / "models"


def test_a_connection_that_breaks_is_taken_up_where_it_broke(
    models_dir: Path | None, hub_at: HubAt, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "omlx_server")
    faults, seen = Faults(cuts=[700_000, 200_000]), Seen()
    with fake_hub.serve(REPO, FILES, LARGE, faults) as (address, asked):
        hub_at(address)
        done = download(REPO, models_dir, seen)
    assert (done.path / "model.safetensors").read_bytes() == WEIGHTS
    starts = [int(r.removeprefix("bytes=").partition("-")[0]) for r in weights_asked(asked)]
    again = [start % (1 << 20) for start in starts if start % (1 << 20)]
    assert len(starts) == 5 and again
    assert all(start == 524_288 for start in again)  # two whole chunks of the 700,000 bytes
    assert done.fetched_bytes == len(WEIGHTS)
    assert seen.stages() == ["download", "verify"]
    assert seen.updates[-1] == ("verify", len(WEIGHTS), len(WEIGHTS))
    (named,) = [one.getMessage() for one in caplog.records if one.name.startswith("omlx_server")]
    assert named == f"downloading {REPO}, 3 MB, from the hub"


def test_a_later_run_goes_on_where_an_earlier_one_gave_up(
    tmp_path: Path, hub_at: HubAt, models_dir: Path | None
) -> None:
    faults = Faults(cuts=[900_000] * 3 + [0] * 20)
    with fake_hub.serve(REPO, FILES, LARGE, faults) as (address, asked):
        hub_at(address, ())
        with pytest.raises(ModelUnavailable, match="Could not download"):
            download(REPO, models_dir, Silent())
        assert find_installed(REPO, Places([models_dir] if models_dir else [], True)) is None
        asked.clear()
        faults.cuts.clear()
        done = download(REPO, models_dir, Silent())
        assert done.fetched_bytes <= len(WEIGHTS) - 700_000
        assert 0 < len(weights_asked(asked)) <= 3
        assert (done.path / "model.safetensors").read_bytes() == WEIGHTS
        again = download(REPO, models_dir, Silent())
    assert (again.path, again.fetched_bytes) == (done.path, 0)
    assert not list(tmp_path.rglob("*.incomplete"))


def test_all_files_of_a_vision_model_come(models_dir: Path | None, hub_at: HubAt) -> None:
    names = (
        *("preprocessor_config.json", "processor_config.json", "chat_template.json"),
        *("chat_template.jinja", "additional_chat_templates/tool_use.jinja"),
    )
    files = FILES | dict.fromkeys(names, b"{}")
    with fake_hub.serve(REPO, files, LARGE) as (address, _):
        hub_at(address)
        done = download(REPO, models_dir, Silent())
    assert all((done.path / name).read_bytes() == b"{}" for name in names)


def test_two_at_once_fetch_it_once(models_dir: Path | None, hub_at: HubAt) -> None:
    with fake_hub.serve(REPO, FILES, LARGE) as (address, _), ThreadPoolExecutor(3) as threads:
        hub_at(address)
        coming = [threads.submit(download, REPO, models_dir, Silent()) for _ in range(3)]
        done = [one.result(timeout=120) for one in coming]
    assert sorted(one.fetched_bytes for one in done) == [0, 0, len(WEIGHTS)]
    assert len({one.path for one in done}) == 1


def test_damaged_bytes_are_fetched_again(models_dir: Path | None, hub_at: HubAt) -> None:
    seen = Seen()
    with fake_hub.serve(REPO, FILES, LARGE, Faults(damaged=1)) as (address, _):
        hub_at(address)
        done = download(REPO, models_dir, seen)
    assert (done.path / "model.safetensors").read_bytes() == WEIGHTS
    assert seen.stages() == ["download", "verify", "download again"]
    assert done.fetched_bytes == 2 * len(WEIGHTS)


def test_a_hub_that_stays_damaged_is_an_error(
    tmp_path: Path, hub_at: HubAt, models_dir: Path | None
) -> None:
    with fake_hub.serve(REPO, FILES, LARGE, Faults(damaged=9)) as (address, _):
        hub_at(address)
        with pytest.raises(ModelUnavailable, match="comes damaged"):
            download(REPO, models_dir, Silent())
    assert find_installed(REPO, Places([models_dir] if models_dir else [], True)) is None
    whole = [p for p in tmp_path.rglob("*") if p.is_file() and p.stat().st_size == len(WEIGHTS)]
    assert not whole


def test_damage_on_the_disk_is_found_and_repaired(models_dir: Path | None, hub_at: HubAt) -> None:
    dirs = [models_dir] if models_dir else []
    with fake_hub.serve(REPO, FILES, LARGE) as (address, _):
        hub_at(address)
        found = pull(REPO, Places(dirs, models_dir is None), Silent()).model
        file = found.path / "model.safetensors"
        file.write_bytes(b"\0" + WEIGHTS[1:])
        done = pull(REPO, Places(dirs, models_dir is None), Silent())
        assert (done.model, done.fetched_bytes) == (found, len(WEIGHTS))
        assert file.read_bytes() == WEIGHTS


def test_a_repair_that_breaks_off_leaves_what_was_here(
    models_dir: Path | None, hub_at: HubAt
) -> None:
    places, faults = Places([models_dir] if models_dir else [], models_dir is None), Faults()
    damaged = b"\0" + WEIGHTS[1:]
    with fake_hub.serve(REPO, FILES, LARGE, faults) as (address, _):
        hub_at(address, ())
        file = pull(REPO, places, Silent()).model.path / "model.safetensors"
        file.write_bytes(damaged)
        faults.cuts = [0] * 20
        with pytest.raises(ModelUnavailable, match="Could not download"):
            pull(REPO, places, Silent())
        assert file.read_bytes() == damaged
        faults.cuts, faults.damaged = [], 9
        with pytest.raises(ModelUnavailable, match="comes damaged"):
            pull(REPO, places, Silent())
        assert file.read_bytes() == damaged
        faults.damaged = 0
        pull(REPO, places, Silent())
        assert file.read_bytes() == WEIGHTS


def test_the_end_of_a_name_repairs_what_is_not_whole(tmp_path: Path, hub_at: HubAt) -> None:
    with fake_hub.serve(REPO, FILES, LARGE) as (address, _):
        hub_at(address)
        file = pull(REPO, Places([tmp_path]), Silent()).model.path / "model.safetensors"
        file.unlink()
        assert pull("tiny-4bit", Places([tmp_path], True), Silent()).fetched_bytes
        assert file.read_bytes() == WEIGHTS


def test_what_was_checked_is_what_is_served_though_main_moves(hub_at: HubAt) -> None:
    with fake_hub.serve(REPO, FILES, LARGE, Faults(heads=[COMMIT, "d" * 40])) as (address, _):
        hub = hub_at(address)
        done = download(REPO, None, Silent())
    assert done.path.name == COMMIT
    assert hub.cached(REPO) == done.path


def test_a_large_file_may_be_empty(models_dir: Path | None, hub_at: HubAt) -> None:
    files = {**FILES, "more.safetensors": b""}
    with fake_hub.serve(REPO, files, frozenset(files) - {"config.json"}) as (address, _):
        hub_at(address)
        done = download(REPO, models_dir, Silent())
    assert (done.path / "more.safetensors").read_bytes() == b""


def test_what_waits_for_another_download_can_be_ended(
    models_dir: Path | None, tmp_path: Path, hub_at: HubAt
) -> None:
    class Ended(Exception):
        pass

    class Ending(Seen):
        def update(self, stage: str, done: int, total: int) -> None:
            raise Ended

    with fake_hub.serve(REPO, FILES, LARGE) as (address, _):
        hub_at(address)
        download(REPO, models_dir, Silent())
        [lock] = models_dir.rglob("models--*.lock") if models_dir else tmp_path.rglob("omlx.lock")
        with lock.open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            with pytest.raises(Ended):
                download(REPO, models_dir, Ending())


def test_a_disk_that_fails_is_told(tmp_path: Path, hub_at: HubAt) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "acme").write_text("no directory")
    with fake_hub.serve(REPO, FILES, LARGE) as (address, _):
        hub_at(address)
        with pytest.raises(ModelUnavailable, match=f"Could not download {REPO}: File exists"):
            download(REPO, tmp_path / "models", Silent())


def test_a_disk_that_others_fill_meanwhile_ends_the_download(
    hub_at: HubAt, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Filling(Seen):
        def update(self, stage: str, done: int, total: int) -> None:
            monkeypatch.setattr(download_module, "RESERVE_BYTES", 10**18)

    with fake_hub.serve(REPO, FILES, LARGE, Faults(rate=2e5)) as (address, _):
        hub_at(address)
        with pytest.raises(ModelUnavailable, match="GB free"):
            download(REPO, None, Filling())


def test_too_small_a_disk_is_told_before_the_download(
    models_dir: Path | None, hub_at: HubAt
) -> None:
    faults = Faults(claimed={"model.safetensors": 10**15})
    with fake_hub.serve(REPO, FILES, LARGE, faults) as (address, asked):
        hub_at(address)
        with pytest.raises(ModelUnavailable, match=r"needs 1000000\.0 GB more, and .* GB free"):
            download(REPO, models_dir, Silent())
    assert not weights_asked(asked)


@pytest.mark.parametrize("size", [len(WEIGHTS) - 5, len(WEIGHTS) + 5])
def test_a_size_that_is_not_true_ends_the_download(hub_at: HubAt, size: int) -> None:
    faults = Faults(claimed={"model.safetensors": size})
    with fake_hub.serve(REPO, FILES, LARGE, faults) as (address, _):
        hub_at(address)
        with pytest.raises(ModelUnavailable, match="than the hub has listed"):
            download(REPO, None, Silent())


BAD = {
    "has no GGUF files that are named by their type": {"tiny.gguf": WEIGHTS},
    "has no model*.safetensors; it holds PyTorch weights": {
        "config.json": b"{}",
        "pytorch_model.bin": WEIGHTS,
    },
    "has a config.json that is no JSON object": FILES | {"config.json": b"[1]"},
    "is WhisperForConditionalGeneration": FILES
    | {
        "config.json": b'{"architectures": ["WhisperForConditionalGeneration"],'
        b' "is_encoder_decoder": true}'
    },
    "is quantised by bitsandbytes": FILES
    | {"config.json": b'{"quantization_config": {"quant_method": "bitsandbytes"}}'},
    "has no model-00002-of-00002.safetensors, which its index names": FILES
    | {
        "model.safetensors.index.json": json.dumps(
            {"weight_map": {"a": "model.safetensors", "b": "model-00002-of-00002.safetensors"}}
        ).encode()
    },
}


@pytest.mark.parametrize("reason", BAD)
def test_what_is_no_model_for_mlx_is_refused_before_the_download(
    tmp_path: Path, hub_at: HubAt, reason: str
) -> None:
    files = BAD[reason]
    with fake_hub.serve("acme/tiny-GGUF", files, LARGE) as (address, asked):
        hub_at(address)
        with pytest.raises(ModelUnavailable) as caught:
            download("acme/tiny-GGUF", tmp_path, Silent())
    assert reason in caught.value.message
    assert "mlx-community/tiny-4bit" in caught.value.hint
    assert not [line for line in asked if line.endswith((".safetensors", ".gguf", ".bin"))]


def test_gated_and_odd_names(tmp_path: Path, hub_at: HubAt) -> None:
    with fake_hub.serve(REPO, FILES, LARGE, Faults(error_code="GatedRepo")) as (address, _):
        hub_at(address)
        with pytest.raises(ModelUnavailable, match="is gated") as caught:
            pull(REPO, Places([tmp_path]), Silent())
    assert "HF_TOKEN" in caught.value.hint
    assert caught.value.exit_code == 2
    hub_at(NOWHERE)
    with pytest.raises(ModelUnavailable, match="can't be the name"):
        pull("acme/a--b", Places([tmp_path]), Silent())


def test_offline_says_what_is_here(models_dir: Path | None, hub_at: HubAt) -> None:
    dirs = [models_dir] if models_dir else []
    with fake_hub.serve(REPO, FILES, LARGE) as (address, _):
        hub_at(address)
        here = pull(REPO, Places(dirs, models_dir is None), Silent()).model
    hub_at(NOWHERE)
    done = pull(REPO, Places(dirs, models_dir is None), Silent())
    assert (done.model, done.is_checked) == (here, False)
    with pytest.raises(ModelUnavailable, match="Could not download acme/other") as caught:
        pull("acme/other", Places(dirs, models_dir is None), Silent())
    assert f"here already: {REPO}" in caught.value.hint
    assert caught.value.exit_code == 1


def test_a_hub_or_a_disk_that_fails_is_no_mistake_of_the_user(
    tmp_path: Path, hub_at: HubAt
) -> None:
    with fake_hub.serve(REPO, FILES, LARGE, Faults(error_code="Broken")) as (address, _):
        hub_at(address)
        with pytest.raises(ModelUnavailable, match="Could not download") as caught:
            pull(REPO, Places([tmp_path]), Silent())
    assert caught.value.exit_code == 1
    with pytest.raises(ModelUnavailable, match="No space left") as full, explained(REPO):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert full.value.exit_code == 1


def test_a_short_name_pulls_the_model_that_has_it(tmp_path: Path, hub_at: HubAt) -> None:
    with fake_hub.serve(REPO, FILES, LARGE) as (address, _):
        hub_at(address)
        pull(REPO, Places([tmp_path]), Silent())
        assert pull("tiny-4bit", Places([tmp_path]), Silent()).is_checked
        with pytest.raises(ModelUnavailable, match="There is no model"):
            pull("tiny-8bit", Places([tmp_path]), Silent())
    assert (tmp_path / DOWNLOADS).is_dir()


def test_an_address_and_a_short_name_pull_the_model_of_the_hub(
    tmp_path: Path, hub_at: HubAt, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo = "mlx-community/Qwen3-0.6B-4bit"
    with fake_hub.serve(repo, FILES, LARGE) as (address, _):
        hub_at(address)
        monkeypatch.setenv("HF_ENDPOINT", address)
        for name in ("qwen3-0.6b", f"{address}/{repo}/tree/main", f"hf.co/{repo}"):
            done = pull(name, Places([tmp_path]), Silent())
            assert done.model.path == tmp_path / repo
            assert done.model.names == (repo, "Qwen3-0.6B-4bit")
    assert find_here("qwen3-0.6b", Places([tmp_path])) == done.model


def test_a_model_here_goes_before_a_short_name(tmp_path: Path, hub_at: HubAt) -> None:
    hub_at(NOWHERE)
    path = make(tmp_path / "qwen3-4b")
    (path / "tokenizer.json").write_text('{"model": {}}')
    assert pull("qwen3-4b", Places([tmp_path]), Silent()).model.path == path


def test_a_revision_is_a_directory_of_its_own(tmp_path: Path, hub_at: HubAt) -> None:
    places, revisions = Places([tmp_path], True), frozenset({"v1"})
    with fake_hub.serve(REPO, FILES, LARGE, revisions=revisions) as (address, _):
        hub_at(address)
        done = pull(f"hf.co/{REPO}/tree/v1", places, Silent())
        assert done.model.path == tmp_path / f"{REPO}@v1"
        assert done.model.names == (f"{REPO}@v1", "tiny-4bit@v1")
        assert (done.model.path / "model.safetensors").read_bytes() == WEIGHTS
        assert pull("tiny-4bit@v1", places, Silent()).fetched_bytes == 0
        assert find_installed(REPO, places) is None
        with pytest.raises(ModelUnavailable, match="no such revision"):
            pull(f"{REPO}@v2", places, Silent())
