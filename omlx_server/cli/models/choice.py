"""Which model `up` serves when nobody says."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from omlx_server.core.memory.budgets import limit_of
from omlx_server.core.model_files.kind import Kind
from omlx_server.models.catalogue import STARTER
from omlx_server.models.kind import kind_in
from omlx_server.models.locate import Located, installed
from omlx_server.settings import Settings

# Of the limit; the rest is for the conversations.
_WEIGHTS_SHARE = 0.7


@dataclass(frozen=True, slots=True)
class Choice:
    """`why` in a few words, for whoever asked for nothing."""

    name: str
    why: str


def choose(settings: Settings) -> Choice:
    models = settings.models
    if models.default:
        return Choice(models.default, "models.default")
    here = installed(models.dirs, models.use_hf_cache)
    newest = newest_that_fits(here, room_of(settings, _ram_bytes()))
    if newest is not None:
        return Choice(newest.names[0], "the newest model here that fits")
    return Choice(STARTER.name, "a small model to begin with")


def newest_that_fits(here: Iterable[Located], room: float) -> Located | None:
    """Of those that chat; the starter in its own layouts is what remains anyway."""
    fitting = [
        model
        for model in here
        if not model.path.name.startswith(STARTER.full_name)
        and kind_in(model.path, model.names[0]) is Kind.CHAT
        and weights_bytes(model.path) <= room
    ]
    return max(fitting, key=lambda model: model.path.stat().st_mtime, default=None)


def room_of(settings: Settings, ram: int) -> float:
    """Bytes for weights."""
    memory = settings.memory
    return _WEIGHTS_SHARE * limit_of(memory.limit, memory.reserve, ram, None)


def weights_bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.glob("model*.safetensors"))


def _ram_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
