"""Finds the directory of a model by a path, a name, or an id in Hugging Face's cache, or
downloads it. Reads the disk each time; any thread."""

import difflib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from omlx_server.errors import ModelUnavailable
from omlx_server.models import layout, other_programs
from omlx_server.models.catalogue import CATALOGUE
from omlx_server.models.gguf import view as gguf
from omlx_server.models.gguf.walk import is_model, walk
from omlx_server.models.hub import hub
from omlx_server.models.hub.download import Downloaded, download
from omlx_server.models.hub.foreign_names import foreign_name
from omlx_server.models.hub.names import (
    MAIN,
    SHORT_NAMES,
    HubName,
    choose_gguf,
    hub_name,
    repo_id_of,
)
from omlx_server.models.other_programs import NamedPath
from omlx_server.models.progress import ProgressListener, Silent

PATH_STARTS = ("/", "./", "../", "~")
SUGGESTIONS = 3


@dataclass(frozen=True, slots=True)
class Located:
    """A model on the disk, and its names, the one to show first. `problem`: why it can't be
    served."""

    path: Path
    names: tuple[str, ...]
    problem: str = ""


class Places(Protocol):
    """The directories of models, then, with `use_hf_cache`, Hugging Face's cache. Downloads go
    into that cache, else into the first of `dirs`."""

    @property
    def dirs(self) -> Sequence[Path]: ...
    @property
    def use_hf_cache(self) -> bool: ...
    @property
    def other_programs(self) -> Sequence[str]: ...


def locate(name: str, places: Places, progress: ProgressListener | None = None) -> Located:
    """Return the operator's model, downloaded if need be. Raises ModelUnavailable if there is
    none, or it is not whole."""
    model = find_or_expect(name, places)
    if model is not None:
        return model
    wanted = hub_name(name)
    assert wanted is not None  # find_or_expect has raised for others
    into = where_new(wanted, places)
    done = download(
        wanted.repo_id, into, progress or Silent(), revision=wanted.revision, tag=wanted.tag
    )
    return downloaded(done, places)


def downloaded(done: Downloaded, places: Places) -> Located:
    if done.path.suffix != ".gguf":
        return located(done.path, done.name)
    return located(_whole_view(done.path, places), done.name)


def _whole_view(file: Path, places: Places) -> Path:
    view = gguf.view_of(file, _views(places.dirs))
    gguf.complete(view)
    return view


def find_or_expect(name: str, places: Places) -> Located | None:
    """Return the model if it is here, None if `locate` would download it. Raises as `locate`."""
    model = find_here(name, places)
    if model is None and hub_name(name) is None:
        raise unknown(name, places)
    return model


def find_here(name: str, places: Places) -> Located | None:
    """Return the model of that name or path, or None. Raises ModelUnavailable for an incomplete
    one."""
    path = _place(name)
    if name.startswith(PATH_STARTS) or (path / "config.json").is_file():
        return _from_path(path, places)
    model = find_installed(name, places)
    if model is None and path.exists():
        return _from_path(path, places)
    hub_id = hub_name(name) if model is None else None
    return find_installed(str(hub_id), places) if hub_id is not None else model


def find_installed(name: str, places: Places) -> Located | None:
    """Return the installed model of a client's name, or None. Takes no paths. Raises
    ModelUnavailable for an incomplete model in `dirs`."""
    models = candidates(places)
    model, wanted = _named(name, models), hub_name(name)
    if wanted is not None and (model is None or not layout.is_complete(model.path)):
        is_cached = places.use_hf_cache and name == wanted.repo_id and model is None
        if is_cached and (cached := hub.HUB.cached(name)) is not None:
            return located(cached, name)
        model = choose_gguf(wanted, models) or model
    return None if model is None else _checked(model)


def find_in_dirs(name: str, places: Places) -> Located | None:
    """Return the model in `dirs`, complete or not, or a GGUF file. Full names go before short
    ones."""
    return _named(name, candidates(places))


def _named(name: str, models: Iterable[Located]) -> Located | None:
    named = (model for model in models if name in model.names)
    return min(named, key=lambda model: model.names[0] != name, default=None)


def _checked(model: Located) -> Located:
    if model.problem:
        raise ModelUnavailable(model.problem)
    gguf.complete(model.path)
    layout.check(model.path)
    return model


def installed(places: Places) -> list[Located]:
    models = [model for model in candidates(places) if layout.is_complete(model.path)]
    if places.use_hf_cache:
        cached = ((repo_id, hub.HUB.cached(repo_id)) for repo_id in hub.HUB.cached_ids())
        models += [located(path, repo_id) for repo_id, path in cached if path is not None]
    return models


def _place(name: str) -> Path:
    try:
        return Path(name).expanduser()
    except RuntimeError:
        raise ModelUnavailable(
            f"{name}: there is no such home directory", hint="write the whole path"
        ) from None


def _from_path(path: Path, places: Places) -> Located:
    if not path.exists():
        raise ModelUnavailable(f"{path} does not exist", hint=layout.LAYOUT_HINT)
    if (file := _gguf_at(path)) is not None:
        return Located(_whole_view(file, places), (file.stem,))
    if not path.is_dir():
        kind = layout.OTHER_WEIGHTS.get(path.suffix, "single")
        raise ModelUnavailable(
            f"{path} is a {kind} file, not a model directory", hint=layout.LAYOUT_HINT
        )
    layout.check(path)
    absolute = path.resolve()
    return Located(absolute, (absolute.name,))


def _gguf_at(path: Path) -> Path | None:
    """Return the GGUF file of a path: it, or the only one in a directory without a config.json."""
    if path.is_file() and path.suffix == ".gguf":
        return path
    if not path.is_dir() or (path / "config.json").is_file():
        return None
    files = [file for file in sorted(path.glob("*.gguf")) if is_model(file)]
    if len(files) > 1:
        names = ", ".join(file.name for file in files[:SUGGESTIONS])
        raise ModelUnavailable(
            f"{path} has {len(files)} models in GGUF", hint=f"Give the path of one: {names}"
        )
    return files[0] if files else None


def located(path: Path, repo_id: str) -> Located:
    return Located(path, (repo_id, repo_id.rpartition("/")[2]))


def candidates(places: Places) -> list[Located]:
    """Return directories that may be models: NAME, ORG/NAME, a folder of a hub's cache, or views of
    GGUF files, also those in Hugging Face's cache; also those of other programs."""
    folders, files = walk([*places.dirs, *other_programs.directories_of(places.other_programs)])
    if places.use_hf_cache:
        files += walk([hub.HUB.root])[1]
    files += other_programs.ollama_files(places.other_programs)
    shown = (_shown(file, places.dirs) for file in files)
    return _without_doubles([*map(_resolved, folders), *shown])


def in_directories(dirs: Sequence[Path]) -> list[Located]:
    return _without_doubles(map(_resolved, walk(dirs)[0]))


def _resolved(folder: NamedPath) -> Located:
    """Return a directory, or the snapshot in a folder of a hub's cache."""
    repo_id = repo_id_of(folder.path)
    snapshot = hub.Hub(folder.path.parent).snapshot(repo_id) if repo_id else None
    return Located(snapshot or folder.path, folder.names)


def _without_doubles(models: Iterable[Located]) -> list[Located]:
    """Several paths of one directory are one model."""
    same: dict[str, list[Located]] = {}
    for model in models:
        same.setdefault(os.path.realpath(model.path), []).append(model)
    return [_merged(models) for models in same.values()]


def _shown(file: NamedPath, dirs: Sequence[Path]) -> Located:
    try:
        return Located(gguf.view_of(file.path, _views(dirs)), file.names)
    except ModelUnavailable as error:
        return Located(file.path, file.names, error.message)


def remove_old_views(places: Places) -> None:
    if places.dirs:
        gguf.remove_old(_views(places.dirs))


def _views(dirs: Sequence[Path]) -> Path:
    """Return where GGUF files are shown: with the server's own models, which come last."""
    return dirs[-1].expanduser() / gguf.VIEWS


def _merged(models: Sequence[Located]) -> Located:
    """Merge all paths of one model; the first that is no link becomes its path."""
    first = min(models, key=lambda model: model.path.is_symlink() or model.path.parent.is_symlink())
    return replace(first, names=tuple(dict.fromkeys(n for m in (first, *models) for n in m.names)))


def where_new(wanted: HubName, places: Places) -> Path | None:
    """Return the directory for a new model; None is the cache. Raises ModelUnavailable if there
    is none."""
    if places.use_hf_cache and wanted.revision == MAIN:
        return None
    return own_directory(places)


def own_directory(places: Places) -> Path:
    """Raises ModelUnavailable if there is no directory for new models."""
    if not places.dirs:
        raise ModelUnavailable(
            "There is no directory to download models into",
            hint="Set models.dirs, or models.use_hf_cache.",
        )
    return places.dirs[0].expanduser()


def bundled_directory(name: str, is_complete: Callable[[Path], bool], places: Places) -> Path:
    """Return where the model of this directory's name is complete, or is to be made. Raises as
    `own_directory`."""
    first = own_directory(places) / name
    directories = (root.expanduser() / name for root in places.dirs)
    return next(filter(is_complete, directories), first)


def away(places: Places) -> dict[Path, str]:
    """Return those of `dirs` that can't be read, and why, without those below the user's caches."""
    caches = [os.path.expanduser("~/.cache"), os.environ.get("XDG_CACHE_HOME")]  # noqa: PTH111
    problems = {}
    for root in (root.expanduser() for root in places.dirs):
        try:
            os.scandir(root).close()
        except OSError as error:
            if not any(root.is_relative_to(cache) for cache in caches if cache):
                problems[root] = error.strerror or str(error)
    return problems


def about_away(problems: Mapping[Path, str]) -> str:
    sentences = (f"{root} in models.dirs can't be read: {why}." for root, why in problems.items())
    return " ".join(sentences)


def near_names(name: str, places: Places) -> list[str]:
    short = [row.name for row in (*CATALOGUE, *SHORT_NAMES)]
    return nearest(name, [*short, *(n for model in installed(places) for n in model.names)])


def nearest(name: str, names: Iterable[str]) -> list[str]:
    """Return at most three of the `names` near `name`, the nearest first."""
    by_lower = {n.lower(): n for n in names}
    close = difflib.get_close_matches(name.lower(), by_lower, n=SUGGESTIONS, cutoff=0.5)
    return [by_lower[n] for n in close]


def unknown(name: str, places: Places) -> ModelUnavailable:
    if (foreign := foreign_name(name)) is not None:
        return ModelUnavailable(foreign.problem, hint=foreign.hint)
    close = near_names(name, places)
    if close:
        hint = f"Did you mean {' or '.join(close)}?"
    else:
        hint = (
            "Give a directory, a name from `omlx-server list` or `omlx-server search`, or org/name "
            "on Hugging Face."
        )
    hint = f"{about_away(away(places))} {hint}".strip()
    return ModelUnavailable(f"There is no model {name!r}", hint=hint)
