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
    models = installed_models(settings.models)
    model = _find(name, models, takes_paths=True)
    if model is None:
        raise _not_here(name, models, takes_paths=True)
    return model


def with_adapter(
    name: str, settings: Settings, *, takes_paths: bool = True
) -> tuple[Installed, str]:
    """Return the model of a name, and the adapter of MODEL:ADAPTER, else "". Raises UsageError."""
    models = installed_models(settings.models)
    model, adapter = _find(name, models, takes_paths=takes_paths), ""
    if model is None:
        of_model, _, adapter = name.rpartition(":")
        if of_model and adapter:
            model = _find(of_model, models, takes_paths=takes_paths)
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
    path = expanded(name).absolute()
    matches = [model for model in models if takes_paths and model.path.absolute() == path]
    of_hub = hub_name(name)
    visible = [model for model in models if not model.problem.startswith("hidden by")]
    for candidate in (name, *([str(of_hub)] if of_hub else [])):
        by_name = [model for model in visible if candidate in model.names]
        matches += sorted(by_name, key=lambda model: model.names[0] != candidate)
    return matches[0] if matches else None


def _not_here(name: str, models: Sequence[Installed], *, takes_paths: bool) -> UsageError:
    path = expanded(name).absolute()
    if takes_paths and path.exists() and "/" in name:
        return UsageError(
            f"{path} is no model of models.dirs or of the Hugging Face cache",
            hint="`omlx-server list --json` says the paths of those that are",
        )
    close = nearest(name, [known_name for model in models for known_name in model.names])
    hint = (
        f"Did you mean {' or '.join(close)}?" if close else "`omlx-server list` shows what is here"
    )
    return ModelUnavailable(f"There is no model {name!r} here", hint=hint)
