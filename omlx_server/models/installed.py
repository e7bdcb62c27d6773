"""Lists all models on this machine. Reads the disk each time, but no weights; never raises for a
file."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

from omlx_server.core.model_files.kind import ENCODERS, ModelKind, architecture_of
from omlx_server.core.model_files.vision import has_vision, vision_family
from omlx_server.core.model_files.weights import quantization_of
from omlx_server.errors import ModelUnavailable
from omlx_server.models import layout
from omlx_server.models.catalogue import MINILM, STARTER
from omlx_server.models.damage import damaged_weights
from omlx_server.models.description import ModelDescription, described, encoder_length
from omlx_server.models.hub import hub
from omlx_server.models.hub.download import DOWNLOADS
from omlx_server.models.hub.remote import unfit_for_serving
from omlx_server.models.json_file import read_json
from omlx_server.models.kind import kind_in
from omlx_server.models.locate import (
    Located,
    Places,
    candidates,
    in_directories,
    located,
    remove_old_views,
)
from omlx_server.models.other_programs import LLAMA_CPP, LM_STUDIO, OLLAMA, program_of
from omlx_server.models.vision import lacks_for_images

_WEIGHTS = {".safetensors", *layout.OTHER_WEIGHTS} - {".gguf"}
_UNFINISHED = "not all of it is here: pull it again to get the rest"


class ModelOrigin(Enum):
    DIRECTORY = "directory"
    HUB = "Hugging Face cache"
    CATALOGUE = "catalogue"
    OLLAMA = "Ollama"
    LM_STUDIO = "LM Studio"
    LLAMA_CPP = "llama.cpp"


_PROGRAMS = {
    OLLAMA: ModelOrigin.OLLAMA,
    LM_STUDIO: ModelOrigin.LM_STUDIO,
    LLAMA_CPP: ModelOrigin.LLAMA_CPP,
}


@dataclass(frozen=True, slots=True)
class Installed:
    """`names[0]` is the full name; `problem` says why the model can't be served, or is empty.

    `context_length` in tokens. `has_vision`: its config has a vision tower, of the family `vision`
    if known. `no_images` says why it takes none, or is empty.
    """

    path: Path
    names: tuple[str, ...]
    source: ModelOrigin
    kind: ModelKind
    model_type: str
    architecture: str
    quantization: str
    weight_bytes: int
    context_length: int | None
    has_vision: bool
    vision: str
    no_images: str
    problem: str


def installed_models(places: Places) -> list[Installed]:
    """Return all models, in the order of look-up; the first one keeps a shared name."""
    remove_old_views(places)
    located_models = filter(_is_meant, candidates(places))
    models = [_read(model, _source(model)) for model in located_models]
    models += [model for root in places.dirs for model in _unfinished(root.expanduser())]
    if places.use_hf_cache:
        paths = {os.path.realpath(model.path) for model in models}
        cached = map(_cached, hub.HUB.cached_ids())
        models += [model for model in cached if os.path.realpath(model.path) not in paths]
    return _without_doubles(_without_rests(models))


def _without_rests(models: list[Installed]) -> list[Installed]:
    """Leave out directories whose only models are GGUF files, which are listed themselves."""
    files = [file for model in models for file in layout.gguf_files(model.path)]

    def is_rest(model: Installed) -> bool:
        if not model.problem or layout.gguf_files(model.path):
            return False
        folder = hub.folder_of(model.path).resolve()
        return any(file.is_relative_to(folder) for file in files)

    return [model for model in models if not is_rest(model)]


def _without_doubles(models: list[Installed]) -> list[Installed]:
    taken: dict[str, Path] = {}
    for model in models:
        taken.setdefault(model.names[0], model.path)
    unique = []
    for model in models:
        first = taken[model.names[0]]
        names = tuple(n for n in model.names if taken.setdefault(n, model.path) == model.path)
        if first != model.path and not model.problem:
            model = replace(model, problem=f"{first} has the same name and comes first")
        unique.append(replace(model, names=names or model.names[:1]))
    return unique


def _is_meant(model: Located) -> bool:
    if model.problem:
        return True
    try:
        return any(
            path.name == "config.json" or path.suffix in _WEIGHTS for path in model.path.iterdir()
        )
    except OSError:
        return False


def program_with(model: Located) -> ModelOrigin | None:
    """Return the other program that keeps this model, if any."""
    return _PROGRAMS.get(program_of(layout.real_path(model.path)))


def _source(model: Located) -> ModelOrigin:
    if program := program_with(model):
        return program
    cache = hub.HUB.root.resolve()
    if any(file.is_relative_to(cache) for file in layout.gguf_files(model.path)):
        return ModelOrigin.HUB
    is_ours = not {MINILM.full_name, STARTER.full_name}.isdisjoint(model.names)
    return ModelOrigin.CATALOGUE if is_ours else ModelOrigin.DIRECTORY


def _unfinished(root: Path) -> Iterator[Installed]:
    for model in in_directories([root / DOWNLOADS]):
        if "/" in model.names[0]:
            read = _read(model, ModelOrigin.DIRECTORY)
            yield replace(read, problem=_UNFINISHED)


def _cached(repo_id: str) -> Installed:
    directory = hub.HUB.snapshot(repo_id)
    if directory is None:
        model = located(hub.HUB.folder(repo_id), repo_id)
        return replace(_read(model, ModelOrigin.HUB), problem=_UNFINISHED)
    return _read(located(directory, repo_id), ModelOrigin.HUB)


def _read(model: Located, source: ModelOrigin) -> Installed:
    content = read_json(model.path / "config.json")
    config = content if isinstance(content, dict) else {}
    kind = kind_in(model.path, model.names[0]) if config else ModelKind.UNKNOWN
    problem = model.problem or _missing_or_damaged(model.path)
    about = described(model.path)
    if not problem and not isinstance(content, dict):
        problem = "its config.json can't be read"
    return Installed(
        path=model.path,
        names=model.names,
        source=source,
        kind=kind,
        model_type=str(config.get("model_type", "")),
        architecture=architecture_of(config),
        quantization=quantization_of(config),
        weight_bytes=layout.weight_bytes(model.path),
        context_length=_context_of(model.path, config, kind, about),
        has_vision=has_vision(config),
        vision=vision_family(config),
        no_images=lacks_for_images(model.path),
        problem=problem or (f"it {unfit}" if (unfit := unfit_for_serving(config, kind)) else ""),
    )


def _context_of(
    directory: Path, config: Mapping[str, Any], kind: ModelKind, about: ModelDescription | None
) -> int | None:
    is_encoder = kind is ModelKind.RERANK and architecture_of(config).startswith(ENCODERS)
    if kind is ModelKind.EMBEDDING or is_encoder:
        return encoder_length(directory)
    return about.said_length if about else None


def _missing_or_damaged(directory: Path) -> str:
    try:
        missing = layout.missing_from(directory)
        other = layout.holding(p.name for p in directory.iterdir()) if missing else ""
    except ModelUnavailable as error:
        return error.message
    except OSError as error:
        return f"it can't be read: {error.strerror or error}"
    return f"it has no {missing}{other}" if missing else damaged_weights(directory)
