"""A program for the tests to kill: ensure() that stops for good in the middle of its conversion.

Arguments: the wheel, its file's sha256, the models directory. Prints a line when it has stopped.
"""

import shutil
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

from omlx_server.models.bundled import starter, wheel
from omlx_server.models.catalogue import WheelFile
from omlx_server.models.progress import ProgressListener
from tests.models.tiny_gguf import ROW


class StopsInConversion:
    def update(self, stage: str, done: int, total: int) -> None:
        if stage == "convert" and done == total // 2:
            sys.stdout.write("stopped\n")
            sys.stdout.flush()
            time.sleep(600)


def fetch(source: WheelFile, into: Path, progress: ProgressListener) -> Path:
    return Path(shutil.copy(sys.argv[1], into))


if __name__ == "__main__":
    # As at a terminal: a shell that runs the tests in the background has SIGINT ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    row = replace(ROW, source=replace(ROW.source, sha256=sys.argv[2]))
    wheel.download = fetch
    starter.ensure(row, Path(sys.argv[3]), variant="f32", progress=StopsInConversion())
