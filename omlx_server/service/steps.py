"""The steps of installing, starting, stopping and removing a service: as values, in words, and
carried out. Nothing else in this package changes files or starts programs."""

import os
import pwd
import shlex
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from omlx_server.errors import OmlxError, UsageError
from omlx_server.service.service import LONGEST_STOP_SECONDS
from omlx_server.settings.whole_file import replacing

_POLL_SECONDS = 0.2
_NO_MANAGER = "Failed to connect to bus"


@dataclass(frozen=True, slots=True)
class MakeDirectory:
    """Make the directory with mode 0700; an existing one stays as it is. Here and below, a file's
    step is done with the rights of `user`, if there is one."""

    path: Path
    user: str = ""


@dataclass(frozen=True, slots=True)
class WriteFile:
    """Write the file whole or not at all. Missing parents are made."""

    path: Path
    text: str
    mode: int = 0o644
    user: str = ""


@dataclass(frozen=True, slots=True)
class Remove:
    """Remove the file; it may be missing."""

    path: Path
    user: str = ""


@dataclass(frozen=True, slots=True)
class CheckReadable:
    """Fail unless `user` can read the paths; those that are missing count as readable."""

    paths: tuple[Path, ...]
    user: str


@dataclass(frozen=True, slots=True)
class RunCommand:
    """Run the command; if it `may_fail`, a non-zero exit code is ignored."""

    command: tuple[str, ...]
    may_fail: bool = False


@dataclass(frozen=True, slots=True)
class WaitUntilGone:
    """Repeat the command until it fails; after `seconds` the step fails."""

    command: tuple[str, ...]
    seconds: int


Step = MakeDirectory | WriteFile | Remove | CheckReadable | RunCommand | WaitUntilGone


def describe(steps: Iterable[Step]) -> Iterator[str]:
    for step in steps:
        match step:
            case MakeDirectory(path, user):
                yield f"- make the directory {path}{_by(user)}"
            case WriteFile(path, text, _, user):
                yield f"- write {path}{_by(user)}:"
                yield from (f"    {line}".rstrip() for line in text.splitlines())
            case Remove(path, user):
                yield f"- remove {path}{_by(user)}"
            case CheckReadable(paths, user):
                yield f"- check that {user} can read {', '.join(map(str, paths))}"
            case RunCommand(command):
                yield f"- run {shlex.join(command)}"
            case WaitUntilGone(command, seconds):
                yield f"- wait up to {seconds} s until this fails: {shlex.join(command)}"


def _by(user: str) -> str:
    return f" as {user}" if user else ""


@dataclass(frozen=True, slots=True)
class Outcome:
    code: int
    out: str = ""
    err: str = ""


Runner = Callable[[Sequence[str]], Outcome]


def run_program(command: Sequence[str]) -> Outcome:
    """Raises UsageError for a missing program, OmlxError after LONGEST_STOP_SECONDS."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=LONGEST_STOP_SECONDS
        )
    except FileNotFoundError:
        raise UsageError(
            f"{command[0]} was not found: there is no service manager to talk to",
            hint="run `omlx-server serve` by hand, or let your own supervisor run it",
        ) from None
    except subprocess.TimeoutExpired:
        raise OmlxError(f"{' '.join(command)} did not end") from None
    return Outcome(done.returncode, done.stdout, done.stderr)


def take(steps: Iterable[Step], run: Runner, pause: Callable[[float], None] = time.sleep) -> None:
    """Carry out the steps. Raises OmlxError at the first that fails."""
    for step in steps:
        try:
            _take(step, run, pause)
        except OSError as error:
            raise OmlxError(f"{error.filename}: {error.strerror}") from None


def _take(step: Step, run: Runner, pause: Callable[[float], None]) -> None:
    match step:
        case MakeDirectory(path, user):
            with _acting_as(user):
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
        case WriteFile(path, text, mode, user):
            with _acting_as(user):
                path.parent.mkdir(parents=True, exist_ok=True)
                with replacing(path, mode) as file:
                    file.write(text.encode())
        case Remove(path, user):
            with _acting_as(user):
                path.unlink(missing_ok=True)
        case CheckReadable(paths, user):
            with _acting_as(user):
                for path in paths:
                    _check_readable(path, user)
        case RunCommand(command, may_fail):
            outcome = run(command)
            if outcome.code and not may_fail:
                raise failed(command, outcome)
        case WaitUntilGone(command, seconds):
            _wait_until_gone(command, seconds, run, pause)


@contextmanager
def _acting_as(user: str) -> Iterator[None]:
    """Have the rights of `user` over files, which takes root unless it is this process's."""
    if not user or pwd.getpwnam(user).pw_uid == os.geteuid():
        yield
        return
    entry, group = pwd.getpwnam(user), os.getegid()
    os.initgroups(user, entry.pw_gid)
    os.setegid(entry.pw_gid)
    os.seteuid(entry.pw_uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(group)
        os.initgroups("root", group)


def _check_readable(path: Path, user: str) -> None:
    try:
        if path.is_dir():
            next(path.iterdir(), None)
        else:
            path.open("rb").close()
    except FileNotFoundError:
        return
    except OSError as error:
        raise UsageError(
            f"{user} can't read {path}: {error.strerror}",
            hint="let this user read it and enter what is above it, or --user NAME who can",
        ) from None


def failed(command: Sequence[str], outcome: Outcome) -> OmlxError:
    words = (outcome.err.strip() or outcome.out.strip() or "it said nothing").splitlines()[0]
    if _NO_MANAGER in words:
        words += "; there is no systemd here for this user: log in as them, without su or sudo"
    return OmlxError(f"`{' '.join(command)}` failed with code {outcome.code}: {words}")


def _wait_until_gone(
    command: Sequence[str], seconds: int, run: Runner, pause: Callable[[float], None]
) -> None:
    for _ in range(max(1, round(seconds / _POLL_SECONDS))):
        if run(command).code:
            return
        pause(_POLL_SECONDS)
    raise OmlxError("the service that runs does not end; `omlx-server service status` tells more")
