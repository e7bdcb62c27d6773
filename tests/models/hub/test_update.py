"""A newer version of a model comes into a directory of models: all of it, or nothing yet."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from omlx_server.core.adapters import CONFIG, WEIGHTS
from omlx_server.models.hub.download import DOWNLOADS, PARTS, download, is_half_updated
from omlx_server.models.locate import find_installed
from omlx_server.models.progress import Silent
from omlx_server.models.pull import pull
from tests.models import fake_hub
from tests.models.directories import Places
from tests.models.fake_hub import Faults, HubAt

NOWHERE = "http://127.0.0.1:9"
REPO = "acme/tiny-4bit"
CONFIGS = [
    b'{"architectures": ["LlamaForCausalLM"], "vocab_size": %d}' % number for number in range(3)
]
OLD = {
    "config.json": CONFIGS[0],
    "tokenizer.json": b"{}",
    "chat_template.jinja": b"old",
    "merges.txt": b"same",
    "model-00001-of-00002.safetensors": b"1" * 400_000,
    "model-00002-of-00002.safetensors": b"2" * 400_000,
}
SAME_SIZE = OLD | {"config.json": CONFIGS[1], "model-00002-of-00002.safetensors": b"3" * 400_000}
OTHER_FILES = {
    "config.json": CONFIGS[2],
    "tokenizer.json": b"{}",
    "merges.txt": b"same",
    "more/about.json": b"{}",
    "model.safetensors": b"4" * 700_000,
}
LARGE = frozenset(name for name in {*OLD, *OTHER_FILES} if name.endswith(".safetensors"))
OWN = {f"adapters/mine/{name}": name.encode() for name in (CONFIG, WEIGHTS)}
PULL = f"""
import sys
from pathlib import Path
from omlx_server.models.hub import hub
from omlx_server.models.hub.download import download
from omlx_server.models.progress import Silent
hub.HUB = hub.Hub(Path(sys.argv[1]) / "hub", sys.argv[2], ())
download({REPO!r}, Path(sys.argv[1]), Silent())
"""


def content_of(model: Path) -> dict[str, bytes]:
    """All files but huggingface_hub's notes."""
    files = [path for path in model.rglob("*") if path.is_file()]
    found = {path.relative_to(model).as_posix(): path.read_bytes() for path in files}
    return {name: content for name, content in found.items() if not name.startswith(".cache/")}


def states_of(model: Path) -> dict[Path, tuple[int, int]]:
    """The inode and the time of each file and each directory."""
    stats = {path: path.stat() for path in (model, *model.rglob("*"))}
    return {path: (stat.st_ino, stat.st_mtime_ns) for path, stat in stats.items()}


def left_in(models: Path) -> set[str]:
    return {path.name for path in (models / DOWNLOADS).iterdir()}


@pytest.fixture
def models(tmp_path: Path, hub_at: HubAt) -> Path:
    """A directory with the old version, and something of its owner's in it."""
    with fake_hub.serve(REPO, OLD, LARGE) as (address, _):
        hub_at(address)
        model = download(REPO, tmp_path / "models", Silent()).path
    (model / "adapters" / "mine").mkdir(parents=True)
    for name, content in OWN.items():
        (model / name).write_bytes(content)
    return tmp_path / "models"


@pytest.mark.parametrize("new", [SAME_SIZE, OTHER_FILES], ids=["same size", "other files"])
def test_a_pull_that_is_killed_leaves_the_old_version(
    new: dict[str, bytes], models: Path, hub_at: HubAt
) -> None:
    with fake_hub.serve(REPO, new, LARGE, Faults(rate=2e5)) as (address, asked):
        pull = subprocess.Popen([sys.executable, "-c", PULL, str(models), address])
        while not any(".safetensors" in line for line in asked):
            assert pull.poll() is None
            time.sleep(0.01)
        pull.kill()
        assert pull.wait() == -signal.SIGKILL
    assert content_of(models / REPO) == OLD | OWN
    found = find_installed(REPO, Places([models]))
    assert found is not None and found.path == models / REPO
    with fake_hub.serve(REPO, new, LARGE) as (address, _):
        hub_at(address)
        assert download(REPO, models, Silent()).path == models / REPO
        assert content_of(models / REPO) == new | OWN
        assert download(REPO, models, Silent()).fetched_bytes == 0
    assert left_in(models) == {PARTS}
    assert [path.name for path in (models / DOWNLOADS / PARTS).iterdir()] == [
        "models--acme--tiny-4bit.lock"
    ]


def test_a_kill_while_files_are_moved_leaves_no_mixture(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.models.hub.killed_update", str(tmp_path)]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    lines = [line.split() for line in said.splitlines()]
    assert lines[0] == ["old", "old", "False"]
    assert all(line[1:] == ["new", "False"] for line in lines[1:])
    killed = [line[0] for line in lines]
    assert killed == sorted(killed, key=["old", "none", "new"].index)
    assert killed.count("none") > 3


def test_what_a_kill_has_left_is_finished_without_a_network(models: Path, hub_at: HubAt) -> None:
    model = models / REPO
    ready = models / DOWNLOADS / ".ready-models--acme--tiny-4bit"
    ready.mkdir()
    (ready / "config.json").write_bytes(CONFIGS[1])
    (model / "config.json").unlink()
    assert is_half_updated(REPO, models)
    hub_at(NOWHERE)
    done = pull(REPO, Places([models.parent / "others", models], True), Silent())
    assert (done.model.path, done.is_checked) == (model, False)
    assert content_of(model) == OLD | OWN | {"config.json": CONFIGS[1]}
    assert not is_half_updated(REPO, models)


def test_a_pull_of_what_is_here_moves_nothing(models: Path, hub_at: HubAt) -> None:
    before = states_of(models / REPO)
    with fake_hub.serve(REPO, OLD, LARGE) as (address, asked):
        hub_at(address)
        assert download(REPO, models, Silent()).fetched_bytes == 0
    assert states_of(models / REPO) == before
    assert not [line for line in asked if "/resolve/" in line]
    assert left_in(models) == {PARTS}


def test_a_small_file_that_is_damaged_comes_again(models: Path, hub_at: HubAt) -> None:
    (models / REPO / "merges.txt").write_bytes(b"sane")
    with fake_hub.serve(REPO, OLD, LARGE) as (address, _):
        hub_at(address)
        download(REPO, models, Silent())
    assert content_of(models / REPO) == OLD | OWN
