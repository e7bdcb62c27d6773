"""What is downloaded is counted while pip makes and removes folders beside it."""

import shutil
import threading
from pathlib import Path

from omlx_server.models.bundled import wheel


def test_folders_that_vanish_while_bytes_are_counted(tmp_path: Path) -> None:
    (tmp_path / "kept").write_bytes(b"x" * 100)
    done = threading.Event()

    def build() -> None:
        while not done.is_set():
            folder = tmp_path / "build" / "deep"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "file").write_bytes(b"y")
            shutil.rmtree(tmp_path / "build", ignore_errors=True)

    builder = threading.Thread(target=build)
    builder.start()
    try:
        counts = [wheel._nbytes(tmp_path) for _ in range(2000)]
    finally:
        done.set()
        builder.join()
    assert set(counts) <= {100, 101}
