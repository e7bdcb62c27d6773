"""`omlx-server doctor --model NAME`: loads the model in this process and runs the self-test."""

import json
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class ReportOutput:
    """The options for the report. `share` is a file; "-" is stdout, as with `as_json`."""

    as_json: bool
    share: str

    @property
    def to_stdout(self) -> bool:
        return self.as_json or self.share == STDOUT

    def file(self) -> Path | None:
        """Return the file to write, if any. Raises UsageError if it can't be written."""
        if not self.share or self.share == STDOUT:
            return None
        file = Path(self.share).expanduser()
        must_be_writable = file if file.exists() else file.absolute().parent
        if file.is_dir() or not os.access(must_be_writable, os.W_OK):
            hint = "name another file"
            raise UsageError(f"--share {self.share} can't be written", hint=hint)
        return file


def run(
    model: str, output: ReportOutput, config: Path | None, sets: Sequence[str], *, quick: bool
) -> int:
    """Print the results; return 1 if one fails."""
    settings, file = load_settings(config, sets).settings, output.file()
    check_model_overrides(settings)
    from omlx_server.doctor.selftest.check import QUICK, SelftestPlan
    from omlx_server.doctor.selftest.run import checks, document, quiet
    from omlx_server.doctor.selftest.subject import find_subject, opened

    located = find_subject(model, settings)
    quiet()
    with open_display() as display, on_sigterm(raise_exit):
        display.update("load", 0, 1)
        with opened(located, settings, random.randrange(1 << 31)) as subject:
            display.update("load", 1, 1)
            results = list(checks(subject, QUICK if quick else SelftestPlan(), display.update))
            report = document(subject, results, quick=quick)
    lines = (line_of(check.finding, _NAME_WIDTH) for check in results)
    show_result(report, lines, as_json=output.to_stdout)
    if file is not None:
        text = json.dumps(report, indent=2, ensure_ascii=False)
        file.write_text(text + "\n", encoding="utf-8")
        say(f"the report is in {file}: {_REPORT_CONTENT}")
    return 0 if report["ok"] else 1


def raise_exit(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
