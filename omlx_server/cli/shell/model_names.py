"""Names of models for completion, without opening a model or importing huggingface_hub."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from omlx_server.cli.shell.options import load_settings
from omlx_server.models.catalogue import CATALOGUE, MINILM, names_of
from omlx_server.models.hub.short_names import SHORT_NAMES
from omlx_server.settings.types import expanded


def models() -> list[str]:
    mine = load_settings(None).settings.models
    names = [row.name for row in CATALOGUE]
    names += _below(mine.dirs)
    if mine.use_hf_cache:
        names += _of_hub(_hub_cache())
    names += [*mine.aliases, *filter(None, [mine.default])]
    return list(dict.fromkeys(names))


def servable() -> list[str]:
    return list(dict.fromkeys([*models(), *(row.name for row in SHORT_NAMES)]))


def pullable() -> list[str]:
    return list(dict.fromkeys([*servable(), MINILM.name]))


def _below(dirs: Sequence[Path]) -> Iterator[str]:
    for root in dirs:
        for child in _subdirectories(root.expanduser()):
            if _is_model(child):
                yield from names_of(child.name)
            else:
                inner = filter(_is_model, _subdirectories(child))
                yield from (f"{child.name}/{path.name}" for path in inner)


def _of_hub(cache: Path) -> Iterator[str]:
    for repository in _subdirectories(cache):
        kind, _, name = repository.name.partition("--")
        if kind == "models" and any(repository.glob("snapshots/*/config.json")):
            yield name.replace("--", "/", 1)


def _hub_cache() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME", "~/.cache")
    home = os.environ.get("HF_HOME", f"{cache}/huggingface")
    older = os.environ.get("HUGGINGFACE_HUB_CACHE", f"{home}/hub")
    return expanded(os.environ.get("HF_HUB_CACHE", older))


def _subdirectories(directory: Path) -> list[Path]:
    if not directory.is_dir():
        return []
    return sorted(p for p in directory.iterdir() if p.is_dir() and not p.name.startswith("."))


def _is_model(directory: Path) -> bool:
    return (directory / "config.json").is_file()
