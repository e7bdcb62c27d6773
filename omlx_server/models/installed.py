"""All models on this machine, also those that can't be served, with what their files say of them.

Reads the disk each time and no weights. Never raises for what lies in a directory: a file that
can't be read is the model's problem. Any thread.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from omlx_server.core.model_files.kind import Kind, architecture_of
from omlx_server.errors import ModelUnavailable
from omlx_server.models import catalogue, layout
from omlx_server.models.bundled.embedded import MINILM
from omlx_server.models.damage import damaged_weights
from omlx_server.models.description import describe
from omlx_server.models.hub.download import DOWNLOADS
from omlx_server.models.hub.hub import HUB, Hub
from omlx_server.models.hub.remote import unfit_for_serving
from omlx_server.models.kind import kind_in, read_json
from omlx_server.models.locate import Located, candidates, located
from omlx_server.models.quantization import quantization_of

_WEIGHTS = (".safetensors", *layout.OTHER_WEIGHTS)
_UNFINISHED = "not all of it is here; `omlx-server pull` goes on"


class Source(Enum):
    DIRECTORY = "directory"
    HUB = "Hugging Face cache"
    CATALOGUE = "catalogue"


@dataclass(frozen=True, slots=True)
class Installed:
    """A model on the disk. `names[0]` is its full name; the others it answers to unless an earlier
    model has them. `problem` says why it can't be served, and is empty when it can.

    `context_length` in tokens, None where the files don't say it.
    """

    path: Path
    names: tuple[str, ...]
    source: Source
    kind: Kind
    model_type: str
    architecture: str
    quantization: str
    weight_bytes: int
    context_length: int | None
    problem: str

    @property
    def located(self) -> Located:
        return Located(self.path, self.names)


def installed_models(
    dirs: Sequence[Path], use_hf_cache: bool, *, hub: Hub = HUB
) -> list[Installed]:
    """Those below `dirs` first, in the order in which a name is looked for. A name that two models
    have is the first one's; the second keeps its full name, with its path as problem."""
    found = [_read(model, _source(model)) for model in candidates(dirs) if _is_meant(model.path)]
    found += [model for root in dirs for model in _unfinished(root.expanduser())]
    if use_hf_cache:
        found += [_cached(hub, repo_id) for repo_id in hub.cached_ids()]
    return _without_doubles(found)


def _without_doubles(found: list[Installed]) -> list[Installed]:
    """Full names go before short ones of other models, as in `find_installed`."""
    taken: dict[str, Path] = {}
    for model in found:
        taken.setdefault(model.names[0], model.path)
    kept = []
    for model in found:
        first = taken[model.names[0]]
        names = tuple(n for n in model.names if taken.setdefault(n, model.path) == model.path)
        if first != model.path and not model.problem:
            model = replace(model, problem=f"hidden by {first}, which has the same name")
        kept.append(replace(model, names=names or model.names[:1]))
    return kept


def _is_meant(directory: Path) -> bool:
    """Whether somebody would call it a model: it has a config or weights of any layout."""
    try:
        return any(
            path.name == "config.json" or path.suffix in _WEIGHTS for path in directory.iterdir()
        )
    except OSError:
        return False


def _source(model: Located) -> Source:
    ours = (MINILM.full_name, *(row.full_name for row in catalogue.CATALOGUE))
    return Source.CATALOGUE if any(name in ours for name in model.names) else Source.DIRECTORY


def _unfinished(root: Path) -> Iterator[Installed]:
    """Downloads that broke off."""
    for model in candidates([root / DOWNLOADS]):
        if "/" in model.names[0]:
            read = _read(model, Source.DIRECTORY)
            yield replace(read, problem=_UNFINISHED)


def _cached(hub: Hub, repo_id: str) -> Installed:
    directory = hub.snapshot(repo_id)
    if directory is None:
        model = located(hub.folder(repo_id), repo_id)
        return replace(_read(model, Source.HUB), problem=_UNFINISHED)
    return _read(located(directory, repo_id), Source.HUB)


def _read(model: Located, source: Source) -> Installed:
    said = read_json(model.path / "config.json")
    config = said if isinstance(said, dict) else {}
    kind = kind_in(model.path, model.names[0]) if config else Kind.UNKNOWN
    problem = _missing_or_damaged(model.path)
    if not problem and not isinstance(said, dict):
        problem = "its config.json can't be read"
    return Installed(
        path=model.path,
        names=model.names,
        source=source,
        kind=kind,
        model_type=str(config.get("model_type", "")),
        architecture=architecture_of(config),
        quantization=quantization_of(config),
        weight_bytes=_weight_bytes(model.path),
        context_length=_context_length(model.path),
        problem=problem or unfit_for_serving(config, kind),
    )


def _missing_or_damaged(directory: Path) -> str:
    try:
        missing = layout.missing_from(directory)
        other = layout.holding(p.name for p in directory.iterdir()) if missing else ""
    except ModelUnavailable as error:
        return error.message
    except OSError as error:
        return f"it can't be read: {error.strerror or error}"
    return f"has no {missing}{other}" if missing else damaged_weights(directory)


def _weight_bytes(directory: Path) -> int:
    try:
        return sum(path.stat().st_size for path in layout.weight_files(directory) if path.is_file())
    except (ModelUnavailable, OSError):
        return 0


def _context_length(directory: Path) -> int | None:
    try:
        return describe(directory).said_length
    except (ModelUnavailable, OSError):
        return None
