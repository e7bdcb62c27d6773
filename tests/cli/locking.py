"""Another process that has the lock of a cold tier."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cli.program import ROOT


@contextmanager
def locked(root: Path) -> Iterator[None]:
    """Another process that writes there."""
    code = (
        "import sys; from pathlib import Path; from omlx_server.store.lock import Lock;"
        f"assert Lock(Path({str(root)!r})).acquire(); print('locked', flush=True);"
        "sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout and process.stdin
        assert process.stdout.readline() == "locked\n"
        try:
            yield
        finally:
            process.stdin.close()
            process.wait(10)
