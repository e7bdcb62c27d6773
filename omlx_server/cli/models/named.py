"""Finds the model on this machine that a name means."""

from collections.abc import Sequence

from omlx_server.cli.models.list import adapters_of
from omlx_server.errors import ModelUnavailable, UsageError
from omlx_server.models.hub.names import hub_name
from omlx_server.models.installed import Installed, installed_models
from omlx_server.models.locate import nearest
from omlx_server.settings import Settings
from omlx_server.settings.types import expanded


def find_installed(name: str, settings: Settings) -> Installed:
    models = installed_models(settings.models)
    model = _find(name, models, takes_paths=True)
    if model is None:
        raise _not_here(name, models, takes_paths=True)
    return model


def find_with_adapter(
    name: str, settings: Settings, *, takes_paths: bool = True
) -> tuple[Installed, str]:
    """Return the model of MODEL or MODEL:ADAPTER, and the adapter, else "". Raises UsageError."""
    models = installed_models(settings.models)
    model, adapter = _find(name, models, takes_paths=takes_paths), ""
    if model is None:  # only then, as the name of a model may have a colon
        model_name, _, adapter = name.rpartition(":")
        if model_name and adapter:
            model = _find(model_name, models, takes_paths=takes_paths)
    if model is None:
        raise _not_here(name, models, takes_paths=takes_paths)
    adapters = adapters_of(model, settings).all() if adapter else {}
    if adapter and adapter not in adapters:
        raise UsageError(
            f"{model.names[0]} has no adapter {adapter}",
            hint=f"it has {', '.join(adapters)}" if adapters else "it has none",
        )
    return model, adapter


def _find(name: str, models: Sequence[Installed], *, takes_paths: bool) -> Installed | None:
    """Return the model at that path, else the one of that name, else of that name on the hub."""
    path = expanded(name).absolute()
    for model in models:
        if takes_paths and model.path.absolute() == path:
            return model
    on_hub = hub_name(name)
    visible = [model for model in models if not model.problem.startswith("hidden by")]
    for candidate in (name, str(on_hub)) if on_hub else (name,):
        matches = [model for model in visible if candidate in model.names]
        if matches:  # one that has it as its first name goes before others
            return min(matches, key=lambda model: model.names[0] != candidate)
    return None


def _not_here(name: str, models: Sequence[Installed], *, takes_paths: bool) -> UsageError:
    path = expanded(name).absolute()
    if takes_paths and path.exists() and "/" in name:
        return UsageError(
            f"{path} is no model of models.dirs or of the Hugging Face cache",
            hint="`omlx-server list --json` says the paths of those that are",
        )
    similar = nearest(name, [known_name for model in models for known_name in model.names])
    hint = "`omlx-server list` shows what is here"
    if similar:
        hint = f"Did you mean {' or '.join(similar)}?"
    return ModelUnavailable(f"There is no model {name!r} here", hint=hint)
