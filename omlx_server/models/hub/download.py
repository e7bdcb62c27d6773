"""Downloads a model from a hub: looks first, resumes, checks, and leaves it whole or not at all.

    1. refuse it if the hub's list of its files is not that of a model for MLX
    2. fetch the small files; refuse it if they are not those of a model that can be served
    3. refuse it if the disk has no room for the rest
    4. fetch the large files in ranges, and check their sha256
    5. give the model its name, or put what is new into the directory that has it

It goes into Hugging Face's cache, or below a directory of models:

    <dir>/.downloads/<org>/<name>/       the model until it is whole, or what is new of it
    <dir>/.downloads/.parts/<sha256>     a large file until it is whole
"""

import fcntl
import glob
import hashlib
import logging
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from omlx_server.errors import FetchFailed, NoPlaceForModels
from omlx_server.models import layout
from omlx_server.models.hub import hub, update
from omlx_server.models.hub.hub import explained
from omlx_server.models.hub.names import MAIN, HubName
from omlx_server.models.hub.part import bytes_here, has_size
from omlx_server.models.hub.remote import Remote, RemoteFile
from omlx_server.models.hub.transfer import FileTransfer, transfer
from omlx_server.models.progress import ProgressListener

_log = logging.getLogger(__name__)

DOWNLOADS = ".downloads"
PARTS = ".parts"
RESERVE_BYTES = 1_000_000_000
_LOCK_SECONDS = 0.2
_HASH_BYTES = 1 << 23


@dataclass(frozen=True, slots=True)
class Downloaded:
    """The `path` of a directory or of a GGUF file, the first of its parts; the model's full
    `name`."""

    path: Path
    fetched_bytes: int
    name: str


@dataclass(frozen=True, slots=True)
class _Directory:
    """A model's directory `target`, the `staged` one for it, and the latter's name `ready` while
    its files are moved."""

    staged: Path
    target: Path
    ready: Path

    @classmethod
    def of(cls, name: str, models_dir: Path) -> "_Directory":
        downloads = models_dir / DOWNLOADS
        ready = downloads / f".ready-{hub.HUB.folder(name).name}"
        return cls(downloads / name, models_dir / _repository(name), ready)


@dataclass(frozen=True, slots=True)
class _Place:
    """The places of a model's files. Without a `directory` the cache keeps large files in
    `blobs`."""

    directory: _Directory | None
    blobs: Path
    parts: Path

    def new(self, file: RemoteFile) -> Path:
        if self.directory is None:
            return self.blobs / file.sha256
        return self.directory.staged / file.path

    def here(self, file: RemoteFile) -> Path:
        new = self.new(file)
        if self.directory is None or new.exists():
            return new
        return self.directory.target / file.path

    def part(self, file: RemoteFile) -> Path:
        # The cache's own cleaning removes files with this suffix.
        return self.parts / f"{file.sha256}.omlx.incomplete"

    def again(self, file: RemoteFile) -> Path:
        return self.parts / f"{file.sha256}.omlx.again.incomplete"


def download(
    repo_id: str,
    models_dir: Path | None,
    progress: ProgressListener,
    *,
    revision: str = MAIN,
    tag: str = "",
) -> Downloaded:
    """Fetch a model into the cache, or to `models_dir/org/name`, and check files that are here. A
    `revision` other than main is a directory `org/name@revision`, never in a cache. GGUF models of
    several tags lie beside each other.

    Raises ModelUnavailable: no such model, none for MLX, no room, or no network; what has come
    stays.
    """
    name = str(HubName(repo_id, revision))
    with explained(repo_id):
        _finish_update(name, models_dir, progress)
    remote = hub.HUB.look(repo_id, revision, tag)
    remote.check_files()
    name = str(HubName(repo_id, revision, remote.tag))
    with explained(repo_id), _alone(lock_of(name, models_dir), progress):
        path, nbytes = _download(remote, _place(name, models_dir), progress)
    return Downloaded(path, nbytes, name)


def is_half_updated(name: str, models_dir: Path) -> bool:
    """Whether a process was killed during an update, which the next download ends."""
    return _Directory.of(name, models_dir).ready.is_dir()


def _download(remote: Remote, place: _Place, progress: ProgressListener) -> tuple[Path, int]:
    if not remote.tag:
        path = _fetch_small(remote, place, [f for f in remote.small if f.path.endswith(".json")])
        remote.check_contents(path)
    fetched = _fetch_large(remote, place, progress)
    path = _give_names(remote, place)
    if not remote.tag:
        layout.check(path)
    return path, fetched


def _fetch_large(remote: Remote, place: _Place, progress: ProgressListener) -> int:
    missing = [file for file in remote.large if not has_size(place.here(file), file.nbytes)]
    _check_room(remote, place, missing)
    if missing:
        if place.directory is not None:
            place.directory.staged.mkdir(parents=True, exist_ok=True)
        megabytes = sum(file.nbytes for file in missing) / 1e6
        _log.info("downloading %s, %s MB, from the hub", remote.repo_id, f"{megabytes:,.0f}")
    fetched = _fetch(remote, place, missing, progress, "download")
    damaged = _damaged(remote, place, progress)
    for file in damaged:
        if file in missing:
            place.new(file).unlink()  # it has just come, so nobody uses it
    return fetched + _replace(remote, place, damaged, progress)


def _give_names(remote: Remote, place: _Place) -> Path:
    """Return the path of the model."""
    parts = [file.path for file in remote.files] if remote.tag else []
    if place.directory is None:
        # The large files are in their places; this gives them their names.
        only = [*map(glob.escape, parts)] or hub.ALLOWED_FILES
        path = hub.HUB.fetch(remote.repo_id, None, commit=remote.commit, only=only)
        hub.HUB.make_newest(remote.repo_id, remote.commit)
    else:
        path = place.directory.target
        if parts:
            update.add(place.directory.staged, path, parts)
        else:
            _fetch_small(remote, place, remote.small)
            _give_name(remote, place.directory)
        with suppress(OSError):  # another model of the same organisation may be on its way
            place.directory.staged.parent.rmdir()
    return path / parts[0] if parts else path


@contextmanager
def _alone(lock: Path, progress: ProgressListener) -> Iterator[None]:
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("ab") as file:
        while True:
            with suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            progress.update("look", 0, 0)
            time.sleep(_LOCK_SECONDS)
        yield


def is_locked(lock: Path) -> bool:
    with suppress(FileNotFoundError), lock.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def lock_of(name: str, models_dir: Path | None) -> Path:
    """Return the lock of a repository: GGUF models of several tags take turns."""
    folder = hub.HUB.folder(_repository(name)).name
    if models_dir is None:
        return hub.HUB.root / ".locks" / folder / "omlx.lock"
    return models_dir / DOWNLOADS / PARTS / f"{folder}.lock"


def _repository(name: str) -> str:
    return name.partition(":")[0]


def _place(name: str, models_dir: Path | None) -> _Place:
    if models_dir is None:
        blobs = hub.HUB.folder(_repository(name)) / "blobs"
        return _Place(None, blobs, blobs)
    directory = _Directory.of(name, models_dir)
    return _Place(directory, directory.staged, models_dir / DOWNLOADS / PARTS)


def _fetch_small(remote: Remote, place: _Place, files: Sequence[RemoteFile]) -> Path:
    into = None
    if place.directory is not None:
        into, target = place.directory.staged, place.directory.target
        for file in files:
            old, new = target / file.path, into / file.path
            if file.is_same(old) and not file.is_same(new):
                new.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(old, new)
        files = [file for file in files if not file.is_same(into / file.path)]
        if not files:
            return into
    only = [glob.escape(file.path) for file in files]
    return hub.HUB.fetch(remote.repo_id, into, commit=remote.commit, only=only)


def _give_name(remote: Remote, place: _Directory) -> None:
    staged, target = place.staged, place.target
    names = {file.path for file in remote.files}
    if target.is_dir():
        same = {file.path for file in remote.small if file.is_same(target / file.path)}
        update.remove_others(staged, names - same)
        update.publish(staged, place.ready, target, names)
    else:
        update.remove_others(staged, names)
        target.parent.mkdir(parents=True, exist_ok=True)
        staged.rename(target)


def _finish_update(name: str, models_dir: Path | None, progress: ProgressListener) -> None:
    if models_dir is not None and is_half_updated(name, models_dir):
        place = _Directory.of(name, models_dir)
        with _alone(lock_of(name, models_dir), progress):
            update.finish(place.ready, place.target)


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


def _fetch(
    remote: Remote,
    place: _Place,
    files: list[RemoteFile],
    progress: ProgressListener,
    stage: str,
    into: Callable[[_Place, RemoteFile], Path] = _Place.new,
) -> int:
    if not files:
        return 0
    total = sum(file.nbytes for file in remote.large)
    here = total - sum(file.nbytes for file in files)
    transfers = [
        FileTransfer(
            hub.HUB.url(remote, file.path), place.part(file), into(place, file), file.nbytes
        )
        for file in files
    ]

    def report(done: int) -> None:
        free, left = shutil.disk_usage(place.parts).free, total - here - done
        if left and free < RESERVE_BYTES:
            raise _no_room(remote, place, left, free)
        progress.update(stage, here + done, total)

    return transfer(transfers, hub.HUB.pauses, report)


def _replace(
    remote: Remote, place: _Place, damaged: list[RemoteFile], progress: ProgressListener
) -> int:
    _check_room(remote, place, damaged)
    came = _fetch(remote, place, damaged, progress, "download again", _Place.again)
    for file in damaged:
        new = place.again(file)
        if _sha256_of(new, lambda nbytes: None) != file.sha256:
            new.unlink()
            raise FetchFailed(
                f"{file.path} of {remote.repo_id} comes damaged from the hub",
                hint="Try again later.",
            )
        place.new(file).parent.mkdir(parents=True, exist_ok=True)
        new.replace(place.new(file))
    return came


def _damaged(remote: Remote, place: _Place, progress: ProgressListener) -> list[RemoteFile]:
    done, total = 0, sum(file.nbytes for file in remote.large)

    def count(nbytes: int) -> None:
        nonlocal done
        done += nbytes
        progress.update("verify", done, total)

    return [file for file in remote.large if _sha256_of(place.here(file), count) != file.sha256]


def _sha256_of(path: Path, count: Callable[[int], None]) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_HASH_BYTES):
            digest.update(chunk)
            count(len(chunk))
    return digest.hexdigest()
