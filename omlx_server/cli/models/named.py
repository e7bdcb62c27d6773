"""Finds the model on this machine that a name means."""

from collections.abc import Sequence

from omlx_server.cli.models.list import adapters_of
from omlx_server.errors import ModelUnavailable, UsageError
from omlx_server.models.hub.names import hub_name
from omlx_server.models.installed import Installed, installed_models
from omlx_server.models.locate import nearest
from omlx_server.settings import Settings
from omlx_server.settings.types import expanded


def named(name: str, settings: Settings) -> Installed:
    """Return the model of that name or path. Raises UsageError."""
    found = installed_models(settings.models)
    model = _find(name, found, takes_paths=True)
    if model is None:
        raise _not_here(name, found, takes_paths=True)
    return model


def with_adapter(
    name: str, settings: Settings, *, takes_paths: bool = True
) -> tuple[Installed, str]:
    """Return the model of a name, and the adapter of MODEL:ADAPTER, else "". Raises UsageError."""
    found = installed_models(settings.models)
    model, adapter = _find(name, found, takes_paths=takes_paths), ""
    if model is None:
        of_model, _, adapter = name.rpartition(":")
        if of_model and adapter:
            model = _find(of_model, found, takes_paths=takes_paths)
    if model is None:
        raise _not_here(name, found, takes_paths=takes_paths)
    there = adapters_of(model, settings).all() if adapter else {}
    if adapter and adapter not in there:
        raise UsageError(
            f"{model.names[0]} has no adapter {adapter}",
            hint=f"it has {', '.join(there)}" if there else "it has none",
        )
    return model, adapter


def _find(name: str, found: Sequence[Installed], *, takes_paths: bool) -> Installed | None:
    path = expanded(name).absolute()
    chosen = [model for model in found if takes_paths and model.path.absolute() == path]
    of_hub = hub_name(name)
    for own in (name, *([str(of_hub)] if of_hub else [])):
        by_name = [m for m in found if own in m.names and not m.problem.startswith("hidden by")]
        chosen += sorted(by_name, key=lambda model: model.names[0] != own)
    return chosen[0] if chosen else None


def _not_here(name: str, found: Sequence[Installed], *, takes_paths: bool) -> UsageError:
    path = expanded(name).absolute()
    if takes_paths and path.exists() and "/" in name:
        return UsageError(
            f"{path} is no model of models.dirs or of the Hugging Face cache",
            hint="`omlx-server list --json` says the paths of those that are",
        )
    close = nearest(name, [own for model in found for own in model.names])
    hint = (
        f"Did you mean {' or '.join(close)}?" if close else "`omlx-server list` shows what is here"
    )
    return ModelUnavailable(f"There is no model {name!r} here", hint=hint)
