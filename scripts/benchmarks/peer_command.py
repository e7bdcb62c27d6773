"""A command that helps to install a peer: its lines as they come, its failure in one line."""

import subprocess
from collections.abc import Callable, Sequence

from omlx_server.errors import OmlxError
from scripts.benchmarks.peer_pins import Pins

Tell = Callable[[str], None]


def run(pins: Pins, command: Sequence[str], tell: Tell) -> None:
    """Wait until it is done; it ends with us. Raises OmlxError."""
    lines: list[str] = []
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        try:
            for line in process.stdout or ():
                lines.append(line.strip())
                tell(lines[-1])
            code = process.wait()
        finally:
            process.terminate()
    if code:
        raise OmlxError(
            f"can't install {pins.title}: {_reason(lines) or f'exit code {code}'}",
            hint="look at pip's index settings, or leave this one out of --peers",
        )


def _reason(lines: Sequence[str]) -> str:
    """The last line that pip or a compiler calls an error, else the last line."""
    said = [line for line in lines if line]
    errors = [line for line in said if line.startswith("ERROR:") or " error: " in line]
    return (errors or said or [""])[-1].removeprefix("ERROR:").strip()
