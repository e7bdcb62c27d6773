"""Names of models for completion, without opening a model or importing huggingface_hub."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from omlx_server.cli.shell.options import load_settings
from omlx_server.models.catalogue import CATALOGUE, MINILM
from omlx_server.models.gguf.walk import walk
from omlx_server.models.hub.names import SHORT_NAMES
from omlx_server.models.other_programs import NamedPath, directories_of, ollama_files
from omlx_server.settings.types import expanded


def models() -> list[str]:
    settings = load_settings(None).settings.models
    names = [row.name for row in CATALOGUE]
    names += _names_below([*settings.dirs, *directories_of(settings.other_programs)])
    names += (name for file in ollama_files(settings.other_programs) for name in file.names)
    if settings.use_hf_cache:
        names += _names_below([_hub_cache()])
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
    folders, files = walk(dirs)
    for model in (*filter(_is_model, folders), *files):
        whole = {name.rpartition("/")[2] for name in model.names if "/" in name}
        yield from (name for name in model.names if name not in whole)


def _is_model(folder: NamedPath) -> bool:
    snapshots = folder.path.glob("snapshots/*/config.json")
    return (folder.path / "config.json").is_file() or any(snapshots)


def _hub_cache() -> Path:
    user_cache = os.environ.get("XDG_CACHE_HOME", "~/.cache")
    hub_home = os.environ.get("HF_HOME", f"{user_cache}/huggingface")
    by_old_variable = os.environ.get("HUGGINGFACE_HUB_CACHE", f"{hub_home}/hub")
    return expanded(os.environ.get("HF_HUB_CACHE", by_old_variable))
