"""`omlx-server doctor --model NAME`: loads the model in this process and runs the self-test."""

import json
import os
import random
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from omlx_server.cli.look.doctor import line_of
from omlx_server.cli.shell.ending import on_sigterm
from omlx_server.cli.shell.options import check_model_overrides, load_settings
from omlx_server.cli.shell.output import STDOUT, say, show_result
from omlx_server.cli.shell.progress import open_display
from omlx_server.errors import UsageError

_NAME_WIDTH = 11
_REPORT_CONTENT = (
    "it names the model, but has no texts of prompts, no paths, and no names of the user or the "
    "machine"
)


def run(
    model: str, *, quick: bool, as_json: bool, share: str, config: Path | None, sets: Sequence[str]
) -> int:
    """Print the results; return 1 if one fails. `share` is a file for the report; "-" is stdout."""
    settings, file = load_settings(config, sets).settings, _report_file(share)
    check_model_overrides(settings)
    from omlx_server.doctor.selftest.check import QUICK, SelftestPlan
    from omlx_server.doctor.selftest.run import checks, document, quiet
    from omlx_server.doctor.selftest.subject import find_subject, opened

    located = find_subject(model, settings)
    quiet()
    with open_display() as display, on_sigterm(_raise_exit):
        display.update("load", 0, 1)
        with opened(located, settings, random.randrange(1 << 31)) as subject:
            display.update("load", 1, 1)
            results = list(checks(subject, QUICK if quick else SelftestPlan(), display.update))
            report = document(subject, results, quick=quick)
    lines = (line_of(check.finding, _NAME_WIDTH) for check in results)
    show_result(report, lines, as_json=as_json or share == STDOUT)
    if file is not None:
        text = json.dumps(report, indent=2, ensure_ascii=False)
        file.write_text(text + "\n", encoding="utf-8")
        say(f"the report is in {file}: {_REPORT_CONTENT}")
    return 0 if report["ok"] else 1


def _raise_exit(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _report_file(share: str) -> Path | None:
    """Return the file to write, if any. Raises UsageError if it can't be written."""
    if not share or share == STDOUT:
        return None
    file = Path(share).expanduser()
    must_be_writable = file if file.exists() else file.absolute().parent
    if file.is_dir() or not os.access(must_be_writable, os.W_OK):
        raise UsageError(f"--share {share} can't be written", hint="name another file")
    return file
