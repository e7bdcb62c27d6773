"""Every test file is found by the command that CI runs: one that is skipped can't fail."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.recording import MARK

TESTS = Path(__file__).parent
ROOT = TESTS.parent


def arguments_of_ci() -> list[str]:
    """What scripts/test, which CI runs without arguments, gives to pytest."""
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert "scripts/test" in ci
    script = (ROOT / "scripts" / "test").read_text(encoding="utf-8")
    (arguments,) = re.findall(r"^ +set -- (.+)$", script, re.MULTILINE)
    return shlex.split(arguments)


def collected(*arguments: str) -> set[Path]:
    """The test files that pytest finds with these arguments. No conftest.py is imported, which
    takes longer than all the rest."""
    looking = ["-s", "--collect-only", "--noconftest", "-p", "tests.recording"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *arguments, *looking],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    return {Path(line.removeprefix(MARK)) for line in lines if line.startswith(MARK)}


def test_every_test_file_is_collected_by_what_ci_runs() -> None:
    assert collected(*arguments_of_ci()) == set(TESTS.rglob("test_*.py"))


def test_no_conftest_leaves_files_out() -> None:
    for path in TESTS.rglob("conftest.py"):
        assert not re.search("collect_ignore|ignore_collect", path.read_text(encoding="utf-8"))
