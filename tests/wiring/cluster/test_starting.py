"""What ranks write is logged by rank 0 as what it is."""

import logging
import subprocess
import sys

import pytest

from omlx_server.wiring.cluster.starting import log_output

LINES = (
    '{"level": "warning", "message": "a disk is slow", "logger": "x"}',
    "a plain line",
    '{"level": "error", "message": "it broke", "exception": "Traceback: here"}',
    '["no", "line", "of", "a", "log"]',
    "error: no such model",
    "hint: omlx-server pull it",
)


def test_lines_keep_their_level_and_the_last_problem_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    command = [sys.executable, "-c", f"import sys; sys.stderr.write({chr(10).join(LINES)!r})"]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        assert log_output(process, 2) == "no such model"
    assert [(each.levelname, each.getMessage()) for each in caplog.records] == [
        ("WARNING", "rank 2: a disk is slow"),
        ("INFO", "rank 2: a plain line"),
        ("ERROR", "rank 2: it broke\nTraceback: here"),
        ("INFO", f"rank 2: {LINES[3]}"),
        ("ERROR", "rank 2: error: no such model"),
        ("INFO", "rank 2: hint: omlx-server pull it"),
    ]
