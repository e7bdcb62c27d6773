"""From what a user calls a model to the directory of its files.

In this order: a path, a name below the models directories, an id in Hugging Face's cache, and
last, for `org/name`, a download. Reads the disk each time, keeps nothing; any thread may call it.
"""

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from omlx_server.errors import ModelUnavailable
from omlx_server.models import layout
from omlx_server.models.catalogue import CATALOGUE
from omlx_server.models.hub import HUB, Hub

REPO_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
PATH_STARTS = ("/", "./", "../", "~")
SUGGESTIONS = 3


@dataclass(frozen=True, slots=True)
class Located:
    """A model on the disk. `names` are what it answers to, the one to show first."""

    path: Path
    names: tuple[str, ...]


def locate(name: str, dirs: Sequence[Path], use_hf_cache: bool, *, hub: Hub = HUB) -> Located:
    """The model of that name, downloaded first if need be. For names that come from the operator.

    With `use_hf_cache` downloads go into Hugging Face's cache, else into the first of `dirs`.
    """
    path = Path(name).expanduser()
    if name.startswith(PATH_STARTS) or (path / "config.json").is_file():
        return _from_path(path)
    found = find_installed(name, dirs, use_hf_cache, hub=hub)
    if found is not None:
        return found
    if path.exists():
        return _from_path(path)
    if REPO_ID.fullmatch(name):
        return _located(hub.download(name, None if use_hf_cache else _first(dirs)), name)
    raise _unknown(name, dirs, use_hf_cache, hub)


def find_installed(
    name: str, dirs: Sequence[Path], use_hf_cache: bool, *, hub: Hub = HUB
) -> Located | None:
    """The model of that name if it is here. No paths and no network: for names from clients."""
    candidates = [found for found in _candidates(dirs) if name in found.names]
    # A full name goes before the short name of a model in an org folder.
    candidates.sort(key=lambda found: found.names[0] != name)
    for found in candidates:
        layout.check(found.path)
        return found
    if use_hf_cache and REPO_ID.fullmatch(name):
        cached = hub.cached(name)
        return None if cached is None else _located(cached, name)
    return None


def installed(dirs: Sequence[Path], use_hf_cache: bool, *, hub: Hub = HUB) -> list[Located]:
    """All complete models, those below `dirs` first."""
    found = [model for model in _candidates(dirs) if not layout.missing_from(model.path)]
    if use_hf_cache:
        cached = ((repo_id, hub.cached(repo_id)) for repo_id in hub.cached_ids())
        found += [_located(path, repo_id) for repo_id, path in cached if path is not None]
    return found


def _from_path(path: Path) -> Located:
    if not path.exists():
        raise ModelUnavailable(f"{path} does not exist", hint=layout.LAYOUT_HINT)
    if not path.is_dir():
        kind = layout.OTHER_WEIGHTS.get(path.suffix, "single")
        raise ModelUnavailable(
            f"{path} is a {kind} file, not a model directory", hint=layout.LAYOUT_HINT
        )
    layout.check(path)
    absolute = path.resolve()
    return Located(absolute, (absolute.name,))


def _located(path: Path, repo_id: str) -> Located:
    return Located(path, (repo_id, repo_id.rpartition("/")[2]))


def _candidates(dirs: Sequence[Path]) -> Iterator[Located]:
    """Directories that are, or may be meant as, models: NAME, and ORG/NAME below what is none."""
    for root in dirs:
        for child in _subdirectories(root.expanduser()):
            inner = [] if (child / "config.json").is_file() else _subdirectories(child)
            if not inner:
                yield Located(child, (child.name,))
            for path in inner:
                yield _located(path, f"{child.name}/{path.name}")


def _subdirectories(directory: Path) -> list[Path]:
    if not directory.is_dir():
        return []
    return sorted(p for p in directory.iterdir() if p.is_dir() and not p.name.startswith("."))


def _first(dirs: Sequence[Path]) -> Path:
    if not dirs:
        raise ModelUnavailable(
            "There is no directory to download models into",
            hint="Set models.dirs, or models.use_hf_cache.",
        )
    return dirs[0].expanduser()


def _unknown(name: str, dirs: Sequence[Path], use_hf_cache: bool, hub: Hub) -> ModelUnavailable:
    known = [row.name for row in CATALOGUE]
    known += [n for model in installed(dirs, use_hf_cache, hub=hub) for n in model.names]
    by_lower = {n.lower(): n for n in known}
    close = difflib.get_close_matches(name.lower(), by_lower, n=SUGGESTIONS, cutoff=0.5)
    if close:
        hint = f"Did you mean {' or '.join(by_lower[n] for n in close)}?"
    else:
        hint = "Give a directory, a name from `omlx-server list`, or org/name on Hugging Face."
    return ModelUnavailable(f"There is no model {name!r}", hint=hint)
