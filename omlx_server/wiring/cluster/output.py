"""Copies the standard error of other ranks into the log of rank 0."""

import json
import logging
import subprocess

_log = logging.getLogger(__name__)
_LONGEST = 200  # characters of a reason


def log_output(process: "subprocess.Popen[bytes]", rank: int) -> str:
    """Log the output of a rank until it ends. Return its last line that says what was wrong."""
    assert process.stderr is not None
    last = ""
    for line in process.stderr:
        text = line.decode(errors="replace").strip()
        if not text:
            continue
        level, message = _parted(text)
        _log.log(level, "rank %d: %s", rank, message, extra={"fields": {"rank": rank}})
        if not message.startswith("hint: "):
            last = message.removeprefix("error: ")
    return last[-_LONGEST:]


def _parted(text: str) -> tuple[int, str]:
    """Return the level and message of a line, in JSON or plain text."""
    try:
        line = json.loads(text)
        level = logging.getLevelNamesMapping()[line["level"].upper()]
        message, exception = line["message"], line.get("exception", "")
    except (ValueError, KeyError, TypeError, AttributeError):
        return logging.ERROR if text.startswith("error: ") else logging.INFO, text
    return level, f"{message}\n{exception}".strip()
