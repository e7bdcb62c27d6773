"""scripts/: each says what it does when it is asked for help, and does nothing else."""

import os
import subprocess
from pathlib import Path

from tests.docs.blocks import ROOT


def test_each_script_explains_itself_before_it_sets_up_anything(tmp_path: Path) -> None:
    files = [path for path in sorted((ROOT / "scripts").iterdir()) if path.is_file()]
    scripts = [path for path in files if os.access(path, os.X_OK)]
    assert {"check", "coverage", "docs", "lock", "test"} <= {path.name for path in scripts}
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "OMLX_VENV": str(tmp_path / "venv")}
    for path in scripts:
        for word in ("--help", "-h"):
            done = subprocess.run(
                [str(path), word],
                cwd=tmp_path,
                env=environ,
                capture_output=True,
                text=True,
                timeout=10,
            )
            lines = done.stdout.splitlines()
            assert (done.returncode, done.stderr) == (0, ""), path
            assert f"scripts/{path.name}" in lines[0], path
            assert len(lines) <= 12 and max(map(len, lines)) <= 100, path
    assert list(tmp_path.iterdir()) == []
