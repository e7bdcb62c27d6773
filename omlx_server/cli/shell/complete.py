"""Completion in the shell. A function returns all candidates, of which typer takes those that begin
like the typed word. Imports nothing heavy."""

from collections.abc import Callable, Iterable
from functools import wraps
from pathlib import Path
from typing import ParamSpec

import typer

from omlx_server.errors import OmlxError

Arguments = ParamSpec("Arguments")
_NAMES_MODELS = (
    "models.default",
    "models.embedding",
    "models.reranker",
    "models.pinned",
    "speculation.draft_model",
)


def _silent(names: Callable[Arguments, Iterable[str]]) -> Callable[Arguments, list[str]]:
    """Let `names` offer nothing instead of an error."""

    @wraps(names)
    def complete(*args: Arguments.args, **kwargs: Arguments.kwargs) -> list[str]:
        try:
            return list(names(*args, **kwargs))
        except (OmlxError, OSError):
            return []

    return complete


@_silent
def complete_models() -> Iterable[str]:
    from omlx_server.cli.shell import model_names

    return model_names.models()


@_silent
def complete_servable() -> Iterable[str]:
    from omlx_server.cli.shell import model_names

    return model_names.servable()


@_silent
def complete_pullable() -> Iterable[str]:
    from omlx_server.cli.shell import model_names

    return model_names.pullable()


@_silent
def complete_presets() -> Iterable[str]:
    """Complete presets of all models: the typed model is not known here."""
    from omlx_server.settings import load

    overrides = load().settings.models.overrides.values()
    return sorted({name for one in overrides for name in one.presets})


def complete_keys() -> list[str]:
    from omlx_server.settings import KEYS

    return sorted(KEYS)


@_silent
def complete_set_keys(ctx: typer.Context) -> Iterable[str]:
    from omlx_server.settings.layers import find_config, keys_of_file

    named = ctx.params.get("config_file")  # typer has not made a path of it yet
    file = find_config(Path(named) if named else None)
    return keys_of_file(file) if file else []


def complete_sections(incomplete: str) -> list[str]:
    from omlx_server.settings.sections import SECTIONS

    return complete_keys() if "." in incomplete else sorted(SECTIONS)


def complete_values(ctx: typer.Context) -> list[str]:
    return values_of(str(ctx.params.get("key") or ""))


def complete_settings(incomplete: str) -> list[str]:
    """Complete SECTION.KEY=, then a value."""
    key, equals, _ = incomplete.partition("=")
    if not equals:
        return [f"{name}=" for name in complete_keys()]
    return [f"{key}={one}" for one in values_of(key)]


def complete_schemes() -> list[str]:
    return values_of("kv_cache.scheme")


@_silent
def values_of(key: str) -> Iterable[str]:
    """Return a setting's choices, or names of models; empty if they can't be listed."""
    from omlx_server.core.model_files.parser_signs import REASONING_PARSERS, TOOL_PARSERS
    from omlx_server.settings.override_keys import find_override, is_override
    from omlx_server.settings.sections import FIELDS
    from omlx_server.settings.values import choices_of

    if key in _NAMES_MODELS:
        return complete_models()
    field = find_override(key).field if is_override(key) else FIELDS.get(key)
    if field is None:
        return []
    parsers = {"tool_parser": TOOL_PARSERS, "reasoning_parser": REASONING_PARSERS}
    return sorted(parsers[field.name]) if field.name in parsers else choices_of(field)
