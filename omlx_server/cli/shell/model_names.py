"""Names of models for completion, without opening a model or importing huggingface_hub."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from omlx_server.cli.shell.options import load_settings
from omlx_server.models.catalogue import CATALOGUE, MINILM, names_of
from omlx_server.models.hub.names import SHORT_NAMES
from omlx_server.settings.types import expanded


def models() -> list[str]:
    settings = load_settings(None).settings.models
    names = [row.name for row in CATALOGUE]
    names += _names_below(settings.dirs)
    if settings.use_hf_cache:
        names += _names_in_hub_cache(_hub_cache())
    names += settings.aliases
    if settings.default:
        names.append(settings.default)
    return list(dict.fromkeys(names))


def servable() -> list[str]:
    """Return `models` and the short names, which `serve` downloads."""
    return list(dict.fromkeys([*models(), *(row.name for row in SHORT_NAMES)]))


def pullable() -> list[str]:
    return list(dict.fromkeys([*servable(), MINILM.name]))


def _names_below(dirs: Sequence[Path]) -> Iterator[str]:
    for root in dirs:
        for child in _subdirectories(root.expanduser()):
            if _is_model(child):
                yield from names_of(child.name)
            else:  # it may be an organization: org/name
                models = filter(_is_model, _subdirectories(child))
                yield from (f"{child.name}/{model.name}" for model in models)


def _names_in_hub_cache(cache: Path) -> Iterator[str]:
    for repository in _subdirectories(cache):  # such as models--org--name
        kind, _, name = repository.name.partition("--")
        if kind == "models" and any(repository.glob("snapshots/*/config.json")):
            yield name.replace("--", "/", 1)


def _hub_cache() -> Path:
    user_cache = os.environ.get("XDG_CACHE_HOME", "~/.cache")
    hub_home = os.environ.get("HF_HOME", f"{user_cache}/huggingface")
    by_old_variable = os.environ.get("HUGGINGFACE_HUB_CACHE", f"{hub_home}/hub")
    return expanded(os.environ.get("HF_HUB_CACHE", by_old_variable))


def _subdirectories(directory: Path) -> list[Path]:
    if not directory.is_dir():
        return []
    return sorted(p for p in directory.iterdir() if p.is_dir() and not p.name.startswith("."))


def _is_model(directory: Path) -> bool:
    return (directory / "config.json").is_file()
