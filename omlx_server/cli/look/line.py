"""A finding of the doctor as lines for people."""

import os
import sys

from omlx_server.doctor.finding import Finding, Level

_SIGNS = {Level.OK: "ok  ", Level.WARN: "warn", Level.FAIL: "FAIL"}
_COLORS = {Level.OK: "32", Level.WARN: "33", Level.FAIL: "31"}


def line_of(finding: Finding, width: int = 8) -> str:
    """Return the lines of a finding, coloured on a terminal. `width`: the most letters of what was
    checked."""
    sign = _SIGNS[finding.level]
    if sys.stdout.isatty() and not os.environ.get("NO_COLOR"):
        sign = f"\x1b[{_COLORS[finding.level]}m{sign}\x1b[0m"
    fix = f"\n{' ' * (width + 7)}fix: {finding.fix}" if finding.fix else ""
    return f"{sign}  {finding.what:<{width}} {' '.join(finding.says.splitlines())}{fix}"
