"""Completion in the shell: functions return all candidates. Imports nothing heavy."""

from collections.abc import Callable, Iterable
from functools import wraps
from pathlib import Path
from typing import ParamSpec

import typer

from omlx_server.errors import OmlxError

Arguments = ParamSpec("Arguments")
# The settings whose values are names of models.
_MODEL_KEYS = (
    "models.default",
    "models.embedding",
    "models.reranker",
    "models.pinned",
    "speculation.draft_model",
)


def _empty_on_error(names: Callable[Arguments, Iterable[str]]) -> Callable[Arguments, list[str]]:
    """Let `names` return an empty list instead of raising."""

    @wraps(names)
    def complete(*args: Arguments.args, **kwargs: Arguments.kwargs) -> list[str]:
        try:
            return list(names(*args, **kwargs))
        except (OmlxError, OSError):
            return []

    return complete


@_empty_on_error
def complete_models() -> Iterable[str]:
    from omlx_server.cli.shell import model_names

    return model_names.models()


@_empty_on_error
def complete_servable() -> Iterable[str]:
    from omlx_server.cli.shell import model_names

    return model_names.servable()


@_empty_on_error
def complete_pullable() -> Iterable[str]:
    from omlx_server.cli.shell import model_names

    return model_names.pullable()


@_empty_on_error
def complete_presets() -> Iterable[str]:
    """Complete presets of all models: the typed model is not known here."""
    from omlx_server.settings import load

    overrides = load().settings.models.overrides.values()
    return sorted({name for override in overrides for name in override.presets})


def complete_keys() -> list[str]:
    from omlx_server.settings import KEYS

    return sorted(KEYS)


@_empty_on_error
def complete_keys_of_file(ctx: typer.Context) -> Iterable[str]:
    from omlx_server.settings.layers import find_config, keys_of_file

    typed = ctx.params.get("config_file")  # still text: typer has not parsed it yet
    file = find_config(Path(typed) if typed else None)
    return keys_of_file(file) if file else []


def complete_sections(incomplete: str) -> list[str]:
    from omlx_server.settings.sections import SECTIONS

    return complete_keys() if "." in incomplete else sorted(SECTIONS)


def complete_values(ctx: typer.Context) -> list[str]:
    return possible_values(str(ctx.params.get("key") or ""))


def complete_settings(incomplete: str) -> list[str]:
    """Complete SECTION.KEY=, then a value."""
    key, equals, _ = incomplete.partition("=")
    if not equals:
        return [f"{name}=" for name in complete_keys()]
    return [f"{key}={value}" for value in possible_values(key)]


def complete_schemes() -> list[str]:
    return possible_values("kv_cache.scheme")


@_empty_on_error
def possible_values(key: str) -> Iterable[str]:
    """Return a setting's choices, or names of models; empty if they can't be listed."""
    from omlx_server.core.model_files.parser_signs import REASONING_PARSERS, TOOL_PARSERS
    from omlx_server.settings.override_keys import find_override, is_override
    from omlx_server.settings.sections import FIELDS
    from omlx_server.settings.values import choices_of

    if key in _MODEL_KEYS:
        return complete_models()
    field = find_override(key).field if is_override(key) else FIELDS.get(key)
    if field is None:
        return []
    if field.name == "tool_parser":
        return sorted(TOOL_PARSERS)
    if field.name == "reasoning_parser":
        return sorted(REASONING_PARSERS)
    return choices_of(field)
