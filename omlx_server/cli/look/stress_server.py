"""The server under stress: a process of its own, which ends with this one."""

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from omlx_server.cli.server_client.http import ServerClient, server_at
from omlx_server.cli.shell.options import load_settings
from omlx_server.errors import OmlxError

_PROGRAM = (sys.executable, "-P", "-m", "omlx_server.cli.with_parent")
_READY = re.compile(r"omlx-server is ready: (\S+?)(?:/v1)? serves (\S+)")
_LAST_CHARACTERS = 300  # of the log


class StressServer:
    """`omlx-server serve MODEL`, not started yet. It logs to a file."""

    def __init__(self, model: str, config: Path | None, sets: Sequence[str], log: Path) -> None:
        self._words = ["serve", model, *(["--config", str(config)] if config else [])]
        self._words += [word for assignment in sets for word in ("--set", assignment)]
        keys = load_settings(config, sets).settings.auth.api_keys
        self._key = next((key.reveal() for key in keys), "")
        self._log = log
        self._process: subprocess.Popen[str] | None = None

    @property
    def exit_code(self) -> int | None:
        """The exit code, or minus the signal that ended it; None while it runs."""
        return self._process.poll() if self._process else 0

    def start(self) -> tuple[ServerClient, str]:
        """Wait until it serves; return a client and the model's name. Raises OmlxError."""
        command, pipe = [*_PROGRAM, *self._words], subprocess.PIPE
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=log, text=True, process_group=0
            )
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if ready := _READY.match(line):
                return server_at(ready[1], self._key), ready[2]
        code, text = self._process.wait(), self._log.read_text(errors="replace")
        raise OmlxError(f"the server ended with code {code}", hint=text.strip()[-_LAST_CHARACTERS:])

    def end(self) -> None:
        if self._process is not None:
            with self._process as process:
                process.kill()
