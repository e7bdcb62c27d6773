"""Chooses the model that `up` serves when the user names none."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rich.filesize import decimal

from omlx_server.cli.models.fit import LONG, fit_here
from omlx_server.cli.shell import stdin
from omlx_server.cli.shell.options import memory_limit
from omlx_server.cli.shell.output import visible
from omlx_server.core.memory.fit import Fit
from omlx_server.core.model_files.kind import ModelKind
from omlx_server.errors import ModelUnavailable
from omlx_server.models.catalogue import STARTER
from omlx_server.models.hub import hub
from omlx_server.models.hub.names import ShortName, best_that_fits
from omlx_server.models.installed import program_with
from omlx_server.models.kind import kind_in
from omlx_server.models.layout import real_path, weight_bytes
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
    models = those_that_fit(installed(settings.models), limit)
    own = next((model for model in models if program_with(model) is None), None)
    if own is not None:
        return Choice(own.names[0], "the newest model here that fits")
    if models:
        return _of_other_programs(models)
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


def _of_other_programs(models: Mapping[Located, Fit]) -> Choice:
    """Return the newest model that another program keeps, or ask on a terminal which of several."""
    names = [visible(model.names[0]) for model in models]
    origins = [origin.value for model in models if (origin := program_with(model))]
    number = 1
    if len(models) > 1 and stdin.is_terminal():
        print("Models of other programs, which are served as they are:", flush=True)
        for row, (model, fit) in enumerate(models.items()):
            size = decimal(weight_bytes(model.path))
            name = names[row].ljust(max(map(len, names)))
            print(f"  {row + 1:2}  {name}  {origins[row]:9}  {size:>8}  {fit.value}", flush=True)
        print("`omlx-server search` lists others to download.", flush=True)
        number = stdin.ask_number("Which one?", len(models))
    chosen = list(models)[number - 1]
    return Choice(chosen.names[0], f"kept by {origins[number - 1]}")


def those_that_fit(candidates: Iterable[Located], limit: int) -> dict[Located, Fit]:
    """Return the chat models but the starter, the newest first; those that are tight come last."""
    chat_models = [
        model
        for model in candidates
        if not model.path.name.startswith(STARTER.full_name)
        and kind_in(model.path, model.names[0]) is ModelKind.CHAT
    ]
    newest_first = sorted(chat_models, key=_made_at, reverse=True)
    fits = {model: fit_here(model, limit) for model in newest_first}
    return {m: fit for wanted in (Fit.FITS, Fit.TIGHT) for m, fit in fits.items() if fit is wanted}


def _made_at(model: Located) -> float:
    return real_path(model.path).stat().st_mtime
