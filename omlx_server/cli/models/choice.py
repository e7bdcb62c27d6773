"""Chooses the model that `up` serves when the user names none."""

from collections.abc import Iterable
from dataclasses import dataclass

from rich.filesize import decimal

from omlx_server.cli.models.fit import LONG, fit_here
from omlx_server.cli.shell import stdin
from omlx_server.cli.shell.options import memory_limit
from omlx_server.core.memory.fit import Fit
from omlx_server.core.model_files.kind import ModelKind
from omlx_server.errors import ModelUnavailable
from omlx_server.models.catalogue import STARTER
from omlx_server.models.hub import hub
from omlx_server.models.hub.names import ShortName, best_that_fits
from omlx_server.models.kind import kind_in
from omlx_server.models.locate import Located, installed
from omlx_server.settings import Settings


@dataclass(frozen=True, slots=True)
class Choice:
    """A model, and why it was chosen."""

    name: str
    why: str


def choose(settings: Settings) -> Choice:
    """Return a model that is here, or ask on a terminal whether to download one."""
    if settings.models.default:
        return Choice(settings.models.default, "models.default")
    limit = memory_limit(settings)
    newest = newest_that_fits(installed(settings.models), limit)
    if newest is not None:
        return Choice(newest.names[0], "the newest model here that fits")
    why = "a small model to begin with"
    best = best_that_fits(limit)
    if best is None:
        return Choice(STARTER.name, why)
    if not stdin.is_terminal():
        return Choice(
            STARTER.name, f"{why}; `omlx-server up {best.name}` gets one worth talking to"
        )
    return _offer(best, why)


def _offer(best: ShortName, why: str) -> Choice:
    try:
        hub.HUB.look(best.repo_id)
    except ModelUnavailable as error:
        return Choice(STARTER.name, f"{why}; {best.name} would fit, but: {error.message}")
    abilities = ", ".join(best.abilities)
    print(
        f"No model to chat with is here yet. {best.name} fits this memory with {LONG} "
        f"({abilities}; `omlx-server search` lists others).",
        flush=True,
    )
    question = f"Download about {decimal(best.disk_bytes)} and serve it?"
    if stdin.confirm(question, "", default=True):
        return Choice(best.name, "the best usual model that fits")
    return Choice(STARTER.name, f"{why}; `omlx-server up starter` does not ask")


def newest_that_fits(candidates: Iterable[Located], limit: int) -> Located | None:
    """Return the newest chat model but the starter that fits, or else is tight."""
    chat_models = [
        model
        for model in candidates
        if not model.path.name.startswith(STARTER.full_name)
        and kind_in(model.path, model.names[0]) is ModelKind.CHAT
    ]
    newest_first = sorted(chat_models, key=lambda m: m.path.stat().st_mtime, reverse=True)
    fits = [fit_here(model, limit) for model in newest_first]
    best = next((fit for fit in (Fit.FITS, Fit.TIGHT) if fit in fits), None)
    return newest_first[fits.index(best)] if best else None
