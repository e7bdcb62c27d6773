"""Chooses the model that `up` serves when the user names none."""

import os
from collections.abc import Iterable
from dataclasses import dataclass

from omlx_server.core.memory.ledger import limit_of
from omlx_server.core.model_files.kind import ModelKind
from omlx_server.models.catalogue import STARTER
from omlx_server.models.kind import kind_in
from omlx_server.models.layout import weight_bytes
from omlx_server.models.locate import Located, installed
from omlx_server.settings import Settings

# The share of the memory limit that weights may take; the rest is for conversations.
_WEIGHTS_SHARE = 0.7


@dataclass(frozen=True, slots=True)
class Choice:
    """A model, and why it was chosen."""

    name: str
    why: str


def choose(settings: Settings) -> Choice:
    models = settings.models
    if models.default:
        return Choice(models.default, "models.default")
    ram_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    newest = newest_that_fits(installed(models), room_of(settings, ram_bytes))
    if newest is not None:
        return Choice(newest.names[0], "the newest model here that fits")
    return Choice(STARTER.name, "a small model to begin with")


def newest_that_fits(candidates: Iterable[Located], room: float) -> Located | None:
    """Return the newest chat model whose weights fit into `room` bytes, except the starter."""
    fitting = [
        model
        for model in candidates
        if not model.path.name.startswith(STARTER.full_name)
        and kind_in(model.path, model.names[0]) is ModelKind.CHAT
        and weight_bytes(model.path) <= room
    ]
    return max(fitting, key=lambda model: model.path.stat().st_mtime, default=None)


def room_of(settings: Settings, ram: int) -> float:
    """Return the bytes for weights on a machine with `ram` bytes."""
    memory = settings.memory
    return _WEIGHTS_SHARE * limit_of(memory.limit, memory.reserve, ram, None)
