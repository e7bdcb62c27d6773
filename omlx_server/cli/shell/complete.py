"""Completion in the shell. Functions return candidates, or none after an error. Imports nothing
heavy."""

from collections.abc import Callable
from pathlib import Path

import typer

from omlx_server.errors import OmlxError

_NAMES_MODELS = (
    "models.default",
    "models.embedding",
    "models.reranker",
    "models.pinned",
    "speculation.draft_model",
)


def complete_models(incomplete: str) -> list[str]:
    from omlx_server.cli.shell import model_names

    return _starting(incomplete, model_names.models)


def complete_servable(incomplete: str) -> list[str]:
    from omlx_server.cli.shell import model_names

    return _starting(incomplete, model_names.servable)


def complete_pullable(incomplete: str) -> list[str]:
    from omlx_server.cli.shell import model_names

    return _starting(incomplete, model_names.pullable)


def _starting(incomplete: str, names: Callable[[], list[str]]) -> list[str]:
    try:
        return [name for name in names() if name.startswith(incomplete)]
    except (OmlxError, OSError):
        return []


def complete_presets(incomplete: str) -> list[str]:
    """Complete presets of all models: the typed model is not known here."""
    from omlx_server.settings import load

    try:
        overrides = load().settings.models.overrides.values()
    except (OmlxError, OSError):
        return []
    return sorted(
        {name for one in overrides for name in one.presets if name.startswith(incomplete)}
    )


def complete_keys(incomplete: str) -> list[str]:
    from omlx_server.settings import KEYS

    return sorted(key for key in KEYS if key.startswith(incomplete))


def complete_set_keys(ctx: typer.Context, incomplete: str) -> list[str]:
    from omlx_server.settings.layers import find_config, keys_of_file

    try:
        named = ctx.params.get("config_file")  # typer has not made a path of it yet
        file = find_config(Path(named) if named else None)
        return [k for k in keys_of_file(file) if k.startswith(incomplete)] if file else []
    except (OmlxError, OSError):
        return []


def complete_sections(incomplete: str) -> list[str]:
    from omlx_server.settings.sections import SECTIONS

    if "." in incomplete:
        return complete_keys(incomplete)
    return sorted(name for name in SECTIONS if name.startswith(incomplete))


def complete_values(ctx: typer.Context, incomplete: str) -> list[str]:
    return values_of(str(ctx.params.get("key") or ""), incomplete)


def complete_settings(incomplete: str) -> list[str]:
    """Complete SECTION.KEY=, then a value."""
    key, equals, value = incomplete.partition("=")
    if not equals:
        return [f"{name}=" for name in complete_keys(key)]
    return [f"{key}={one}" for one in values_of(key, value)]


def complete_schemes(incomplete: str) -> list[str]:
    return values_of("kv_cache.scheme", incomplete)


def values_of(key: str, incomplete: str) -> list[str]:
    """Return a setting's choices, or names of models; empty if they can't be listed."""
    from omlx_server.core.model_files.parser_signs import REASONING_PARSERS, TOOL_PARSERS
    from omlx_server.settings.override_keys import find_override, is_override
    from omlx_server.settings.sections import FIELDS
    from omlx_server.settings.values import choices_of

    if key in _NAMES_MODELS:
        return complete_models(incomplete)
    try:
        field = find_override(key).field if is_override(key) else FIELDS.get(key)
    except OmlxError:
        return []
    parsers = {"tool_parser": TOOL_PARSERS, "reasoning_parser": REASONING_PARSERS}
    if field is not None and field.name in parsers:
        choices = sorted(parsers[field.name])
    else:
        choices = choices_of(field) if field is not None else []
    return [choice for choice in choices if choice.startswith(incomplete)]
