"""Whatever lies in a model's directory under the name of a JSON file: no read of it hangs or takes
all memory."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from omlx_server.errors import ModelUnavailable
from omlx_server.models import json_file, layout
from omlx_server.models.description import describe
from omlx_server.models.json_file import read_json
from tests.api.harness import REPO

BOUND = "import pathlib, resource\nresource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))"
GOOD = {"max_position_embeddings": 7, "weight_map": {"a": "model-1.safetensors"}}


def timely(act: Callable[[], object]) -> object:
    """What it gives or raises, if it ends."""
    found: list[object] = []

    def run() -> None:
        try:
            found.append(act())
        except (OSError, ValueError, ModelUnavailable) as error:
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(60)
    assert found, "it hangs"
    return found[0]


def test_a_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**GOOD, "é": "\u4e2d"}), encoding="utf-8")
    assert json_file.read(file) == read_json(file) == {**GOOD, "é": "\u4e2d"}
    assert describe(tmp_path).context_length == 7


@pytest.mark.parametrize("kind", ["pipe", "device", "directory"])
def test_what_is_no_file_does_not_hang(tmp_path: Path, kind: str) -> None:
    for name in ("config.json", "generation_config.json", layout.INDEX):
        file = tmp_path / name
        if kind == "pipe":
            os.mkfifo(file)
        elif kind == "device":
            file.symlink_to("/dev/zero")
        else:
            file.mkdir()
        assert isinstance(timely(lambda file=file: json_file.read(file)), OSError | ValueError)  # type: ignore[misc]
        assert timely(lambda file=file: read_json(file)) is None  # type: ignore[misc]
    assert isinstance(timely(lambda: describe(tmp_path)), ModelUnavailable)
    assert timely(lambda: layout.missing_from(tmp_path)) == "config.json"


@pytest.mark.parametrize(
    "reads",
    [
        "from omlx_server.models.description import describe as read",
        "from omlx_server.models.layout import weight_files as read",
        "from omlx_server.models.kind import kind_in as read",
    ],
)
def test_a_huge_file_takes_no_memory(tmp_path: Path, reads: str) -> None:
    """8 GB that take no room on the disk, read by a process that may have 1 GB."""
    for name in ("config.json", layout.INDEX):
        with (tmp_path / name).open("wb") as file:
            file.truncate(8 << 30)
    done = subprocess.run(
        [sys.executable, "-c", f"{BOUND}\n{reads}\nprint(read(pathlib.Path('.')))"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(REPO)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    said = done.stdout + done.stderr
    assert "MemoryError" not in said
    assert "it has more than 64 MiB" in said or "unknown" in said.lower(), said


def test_the_largest_index_that_there_is_can_be_read(tmp_path: Path) -> None:
    """Of a mixture of experts with a hundred thousand tensors: 10 MB."""
    names = {f"model.layers.{i}.mlp.experts.{i}.down_proj.weight": "m-1" for i in range(100_000)}
    (tmp_path / layout.INDEX).write_text(json.dumps({"weight_map": names}))
    assert layout.weight_files(tmp_path) == [tmp_path / "m-1"]


def test_what_grows_while_it_is_read_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_file, "MOST_BYTES", 4)
    file = tmp_path / "config.json"
    file.write_text("[1]\n")
    assert json_file.read(file) == [1]
    file.write_text("[1] \n")
    with pytest.raises(ValueError, match="more than"):
        json_file.read(file)
