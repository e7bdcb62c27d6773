"""Downloads a model from a hub: looks first, resumes, checks, and leaves it whole or not at all.

    1. refuse it if the hub's list of its files is not that of a model for MLX
    2. fetch the small files; refuse it if they are not those of a model that can be served
    3. refuse it if the disk has no room for the rest
    4. fetch the large files in ranges, into parts with which a later run goes on
    5. check the sha256 of each; fetch a damaged one once more, and replace what was here of it
       when the new one is checked
    6. give the model its name

The model goes into Hugging Face's cache, which does step 6 itself, or below a directory of models:

    <dir>/.downloads/<org>/<name>/       the model until it is whole
    <dir>/.downloads/.parts/<sha256>     a large file until it is

Runs in whichever thread calls it.
"""

import fcntl
import hashlib
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from omlx_server.errors import FetchFailed, NoPlaceForModels
from omlx_server.models import layout
from omlx_server.models.hub import hub
from omlx_server.models.hub.hub import explained
from omlx_server.models.hub.names import MAIN, HubName
from omlx_server.models.hub.part import bytes_here, has_size
from omlx_server.models.hub.remote import Remote, RemoteFile
from omlx_server.models.hub.transfer import Wanted, transfer
from omlx_server.models.progress import Progress

DOWNLOADS = ".downloads"
PARTS = ".parts"
RESERVE_BYTES = 1_000_000_000
_UPDATE_SECONDS = 0.1
_LOCK_SECONDS = 0.2
_HASH_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Downloaded:
    """A model that is here. `fetched_bytes`: how many bytes of its large files came over the
    network in this call; 0 when all were here and undamaged."""

    path: Path
    fetched_bytes: int


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the files of one model go. `into` is the directory for the small ones, None for the
    cache; `target` what it is called in the end."""

    into: Path | None
    target: Path | None
    blobs: Path
    parts: Path

    def of(self, file: RemoteFile) -> Path:
        return self.blobs / file.sha256 if self.into is None else self.into / file.path

    def part(self, file: RemoteFile) -> Path:
        # The cache's own cleaning knows this end of a name.
        return self.parts / f"{file.sha256}.omlx.incomplete"

    def again(self, file: RemoteFile) -> Path:
        """Where a file that is to replace a damaged one waits for its check."""
        return self.parts / f"{file.sha256}.omlx.again.incomplete"


def download(
    repo_id: str, models_dir: Path | None, progress: Progress, *, revision: str = MAIN
) -> Downloaded:
    """Fetch a model into the cache, or to `models_dir/org/name`. Files that are there already are
    checked. A `revision` other than main is a directory of its own, `org/name@revision`, and goes
    into no cache.

    Raises:
        ModelUnavailable: there is no such model, it is none for MLX, there is no room, or no
            network; what has come so far stays for the next time.
    """
    remote = hub.HUB.look(repo_id, revision)
    remote.check_files()
    name = str(HubName(repo_id, revision))
    with explained(repo_id), _alone(_lock_of(name, models_dir), progress):
        return _download(remote, _place(name, models_dir), progress)


def _download(remote: Remote, place: _Place, progress: Progress) -> Downloaded:
    repo_id, commit = remote.repo_id, remote.commit
    small = _small_patterns(remote)
    remote.check_contents(hub.HUB.fetch(repo_id, place.into, commit=commit, only=small))
    missing = [file for file in remote.large if not has_size(place.of(file), file.nbytes)]
    _check_room(remote, place, missing)
    fetched = _fetch(remote, place, missing, progress, "download")
    damaged = _damaged(remote, place, progress)
    for file in damaged:
        if file in missing:
            place.of(file).unlink()  # nobody has used what has just come
    fetched += _replace(remote, place, damaged, progress)
    # The large files are in their places; in the cache this gives them their names.
    without = [] if place.into is None else [file.path for file in remote.large]
    directory = hub.HUB.fetch(repo_id, place.into, commit=commit, without=without)
    layout.check(directory)
    if place.into is None:
        hub.HUB.make_newest(repo_id, commit)
    return Downloaded(_finished(place) or directory, fetched)


@contextmanager
def _alone(lock: Path, progress: Progress) -> Iterator[None]:
    """Waits for another process that downloads the same model; then most of it is here. `progress`
    may end the wait."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("ab") as file:
        while not _locked(file):
            progress.update("look", 0, 0)
            time.sleep(_LOCK_SECONDS)
        yield


def _locked(file: BinaryIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _lock_of(name: str, models_dir: Path | None) -> Path:
    folder = hub.HUB.folder(name).name
    if models_dir is None:
        return hub.HUB.root / ".locks" / folder / "omlx.lock"
    return models_dir / DOWNLOADS / PARTS / f"{folder}.lock"


def _place(name: str, models_dir: Path | None) -> _Place:
    if models_dir is None:
        blobs = hub.HUB.folder(name) / "blobs"
        return _Place(None, None, blobs, blobs)
    target = models_dir / name
    into = target if target.is_dir() else models_dir / DOWNLOADS / name
    return _Place(into, target, into, models_dir / DOWNLOADS / PARTS)


def _small_patterns(remote: Remote) -> list[str]:
    """Of what tells of a model; patterns, which these paths are as well."""
    small = (file.path for file in remote.files if not file.sha256)
    return [path for path in small if path.endswith(".json")]


def _finished(place: _Place) -> Path | None:
    """Where the model is after it got its name; None for the cache."""
    if place.into is None or place.target is None:
        return None
    if place.into != place.target:
        place.target.parent.mkdir(parents=True, exist_ok=True)
        try:
            place.into.rename(place.target)
        except OSError:
            # Another process may have been first, and its files serve as well.
            if layout.missing_from(place.target):
                raise
        with suppress(OSError):  # another model of the same organisation may be on its way
            place.into.parent.rmdir()
    return place.target


# --- What is here, and whether there is room for the rest ----------------------------------------


def _check_room(remote: Remote, place: _Place, missing: Iterable[RemoteFile]) -> None:
    need = sum(file.nbytes - bytes_here(place.part(file), file.nbytes) for file in missing)
    place.parts.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(place.parts).free
    if need and need > free - RESERVE_BYTES:
        raise _no_room(remote, place, need, free)


def _no_room(remote: Remote, place: _Place, need: int, free: int) -> NoPlaceForModels:
    return NoPlaceForModels(
        f"{remote.repo_id} needs {need / 1e9:.1f} GB more, and {place.parts.parent} has "
        f"{free / 1e9:.1f} GB free, of which {RESERVE_BYTES / 1e9:.0f} GB stay so",
        hint="Free some space (`omlx-server rm`, `omlx-server cache trim`), or set models.dirs "
        "to a directory on another disk.",
    )


# --- The large files -----------------------------------------------------------------------------


class _Meter:
    """Bytes of several files as the stage "verify" of a Progress, a few times a second."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress, self._total = progress, total
        self._before = 0
        self._told = 0.0

    def tell(self, done_of_file: int) -> None:
        now, done = time.monotonic(), self._before + done_of_file
        if now - self._told >= _UPDATE_SECONDS or done >= self._total:
            self._told = now
            self._progress.update("verify", done, self._total)

    def finish(self, nbytes: int) -> None:
        self._before += nbytes


def _fetch(
    remote: Remote,
    place: _Place,
    files: list[RemoteFile],
    progress: Progress,
    stage: str,
    into: Callable[[_Place, RemoteFile], Path] = _Place.of,
) -> int:
    """The bytes that came. Raises NoPlaceForModels where others fill the disk meanwhile."""
    if not files:
        return 0
    total = sum(file.nbytes for file in remote.large)
    here = total - sum(file.nbytes for file in files)
    wanted = [
        Wanted(hub.HUB.url(remote, file.path), place.part(file), into(place, file), file.nbytes)
        for file in files
    ]

    def report(done: int) -> None:
        free, left = shutil.disk_usage(place.parts).free, total - here - done
        if left and free < RESERVE_BYTES:
            raise _no_room(remote, place, left, free)
        progress.update(stage, here + done, total)

    return transfer(wanted, hub.HUB.pauses, report)


def _replace(remote: Remote, place: _Place, damaged: list[RemoteFile], progress: Progress) -> int:
    """Replace damaged files by sound ones; what is here of them stays until then. Returns the bytes
    that came. Raises FetchFailed where the hub's own are damaged."""
    _check_room(remote, place, damaged)
    came = _fetch(remote, place, damaged, progress, "download again", _Place.again)
    for file in damaged:
        new = place.again(file)
        if _sha256_of(new) != file.sha256:
            new.unlink()
            raise FetchFailed(
                f"{file.path} of {remote.repo_id} comes damaged from the hub",
                hint="Try again later.",
            )
        new.replace(place.of(file))
    return came


def _damaged(remote: Remote, place: _Place, progress: Progress) -> list[RemoteFile]:
    """What is not as the hub says."""
    meter = _Meter(progress, sum(file.nbytes for file in remote.large))
    found = []
    for file in remote.large:
        if _sha256_of(place.of(file), meter.tell) != file.sha256:
            found.append(file)
        meter.finish(file.nbytes)
    return found


def _sha256_of(path: Path, report: Callable[[int], None] = lambda done: None) -> str:
    """The sha256 of a file in hex digits. `report` is told how many bytes have been read."""
    digest, done = hashlib.sha256(), 0
    with path.open("rb") as file:
        while chunk := file.read(_HASH_BYTES):
            digest.update(chunk)
            done += len(chunk)
            report(done)
    return digest.hexdigest()
