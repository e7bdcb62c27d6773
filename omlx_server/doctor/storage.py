"""Checks of the disk, of directories and of model files."""

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from omlx_server.doctor.finding import Finding, fail, in_words, ok, warn
from omlx_server.settings import CacheSettings
from omlx_server.settings.whole_file import OTHERS

# A share of the cold tier's budget; with less room the tier is of little use.
_LEAST_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class DiskPath:
    """A file or directory on the disk. `mode` is None if it does not exist; `writable` then tells
    whether it can be created."""

    path: Path
    mode: int | None = None
    mine: bool = True
    writable: bool = True


def look_at(path: Path) -> DiskPath:
    """Return the state of the path; one that can't be looked at counts as another user's."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return DiskPath(path, writable=os.access(_nearest(path), os.W_OK | os.X_OK))
    except OSError:
        return DiskPath(path, 0, mine=False, writable=False)
    mine = status.st_uid == os.geteuid()
    return DiskPath(path, stat.S_IMODE(status.st_mode), mine, os.access(path, os.W_OK))


def _nearest(path: Path) -> Path:
    return next((parent for parent in path.absolute().parents if parent.is_dir()), Path("/"))


def free_bytes(path: Path) -> int:
    """Return the free bytes where the path is, or would be created."""
    file_system = os.statvfs(path if path.is_dir() else _nearest(path))
    return file_system.f_bavail * file_system.f_frsize


def disk(cache: CacheSettings, free: int) -> Finding:
    if not cache.has_cold:
        return ok("disk", "nothing is written: the cache is in memory only")
    least, most = cache.cold_min_free_disk, cache.cold_cache_max_bytes
    text = f"{in_words(free)} are free at {cache.cold_dir}"
    if free < least:
        return warn(
            "disk",
            f"{text}, less than cache.cold_min_free_disk ({in_words(least)}): no block is stored",
            "make room, lower cache.cold_min_free_disk, or set cache.hot_cache_only = true",
        )
    if free - least < most * _LEAST_SHARE:
        lower = f", or lower cache.cold_min_free_disk ({in_words(least)})" if least else ""
        return warn("disk", f"{text}: the cache can hardly grow", f"make room{lower}")
    return ok("disk", text)


def directory(what: str, place: DiskPath, *, private: bool = True) -> Finding:
    """Return the finding on a directory of the server; a `private` one should be closed to
    others."""
    path = place.path
    if not place.mine:
        return fail(what, f"{path} belongs to somebody else", f"sudo chown -R $(id -u) {path}")
    if not place.writable:
        return fail(what, f"{path} can't be written to", f"chmod u+rwx {path}")
    if place.mode is None:
        return ok(what, f"{path} is not there yet and will be made")
    if private and place.mode & OTHERS:
        return warn(what, f"others may look into {path} ({place.mode:04o})", f"chmod 700 {path}")
    return ok(what, f"{path} ({place.mode:04o})")


def private_file(what: str, place: DiskPath) -> Finding:
    path = place.path
    if place.mode is None:
        return ok(what, f"{path} is not there")
    if place.mode & OTHERS:
        return warn(what, f"others may read {path} ({place.mode:04o})", f"chmod 600 {path}")
    return ok(what, f"{path} ({place.mode:04o})")


def model(name: str, path: Path | None, problem: str, fix: str = "") -> Finding:
    """Return the finding on the default model; `path` is None if it is not here."""
    if problem:
        return fail("model", f"{name}: {problem}", fix or "get it again, or serve another one")
    if path is None:
        return ok("model", f"{name} is not here yet; `omlx-server serve` fetches it")
    return ok("model", f"{name} in {path}")


def unreadable(path: Path) -> str:
    """Return a sentence on the first unreadable file of a model, if any."""
    for file in sorted(path.iterdir()):
        if file.is_file() and not os.access(file, os.R_OK):
            return f"{file} can't be read"
    return ""
