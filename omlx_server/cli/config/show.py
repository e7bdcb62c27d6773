"""`omlx-server config show`, `get` and `validate`. Secrets show as stars."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from omlx_server import settings
from omlx_server.cli.shell.options import load_settings, model_override_problems
from omlx_server.cli.shell.output import report_error, say, show_json, show_result
from omlx_server.errors import ConfigError
from omlx_server.settings.override_keys import find_override, is_override
from omlx_server.settings.sections import FIELDS, SECTIONS
from omlx_server.settings.types import format_size
from omlx_server.settings.unknown_keys import check_key
from omlx_server.settings.values import is_size, plain, value_of
from omlx_server.store.mediums.remote import scheme_of


def show(
    *, origin: bool, explain: bool, as_json: bool, config: Path | None, sets: Sequence[str]
) -> int:
    loaded = load_settings(config, sets)
    lines = _toml_lines(loaded, origin=origin, explain=explain)
    show_result(_json_document(loaded), lines, as_json=as_json)
    return 0


def get(*, key: str, as_json: bool, config: Path | None, sets: Sequence[str]) -> int:
    loaded = load_settings(config, sets)
    if key in SECTIONS:
        values = _json_document(loaded)["settings"][key]
        show_result(values, _section_lines(loaded, key), as_json=as_json)
        return 0
    value = value_in_force(key, loaded)
    if as_json or isinstance(value, dict):
        show_json(value, indent=None)
    elif is_size(key) and isinstance(value, int):
        print(format_size(value))
    else:
        print(value if isinstance(value, str) else as_toml(key, value))
    return 0


def validate(*, config: Path | None) -> int:
    """Print warnings, or all errors for which `serve` would refuse to start."""
    errors: list[ConfigError] = settings.find_problems(config)
    if errors:
        return max([report_error(error) for error in errors])
    loaded = load_settings(config)
    if errors := list(_later_problems(loaded.settings)):
        return max([report_error(error) for error in errors])
    print_warnings(loaded)
    print(f"{loaded.source or 'No config file: the defaults and the environment'}: valid")
    return 0


def _later_problems(values: settings.Settings) -> Iterator[ConfigError]:
    """Yield what `serve` finds wrong once the settings are loaded."""
    yield from model_override_problems(values)
    if values.cache.remote and values.cache.has_cold:
        try:
            scheme_of(values.cache.remote.reveal())
        except ConfigError as error:
            yield error


def value_in_force(dotted: str, loaded: settings.Loaded) -> object:
    """Return a key's value for JSON. Raises ConfigError if unknown, OmlxError if unset."""
    if is_override(dotted):
        models = loaded.settings.models.overrides
        return find_override(dotted, models).value_in(loaded.settings)
    check_key(dotted, "")
    return plain(value_of(loaded.settings, dotted))


def print_warnings(loaded: settings.Loaded) -> None:
    for warning in settings.warnings(loaded):
        say(f"warning: {warning}")


def _json_document(loaded: settings.Loaded) -> dict[str, Any]:
    values = {
        name: {key: plain(value) for key, value in section} for name, section in loaded.settings
    }
    source = str(loaded.source) if loaded.source else None
    return {"source": source, "settings": values, "origins": dict(loaded.origins)}


def _toml_lines(loaded: settings.Loaded, *, origin: bool, explain: bool) -> Iterator[str]:
    yield f"# config file: {loaded.source or 'none found'}"
    for name, _ in loaded.settings:
        yield f"\n[{name}]"
        yield from _section_lines(loaded, name, origin=origin, explain=explain)


def _section_lines(
    loaded: settings.Loaded, name: str, *, origin: bool = False, explain: bool = False
) -> Iterator[str]:
    for key, value in getattr(loaded.settings, name):
        dotted = f"{name}.{key}"
        if explain:
            yield from commented(FIELDS[dotted].text)
        line = f"{key} = {as_toml(dotted, plain(value))}"
        yield f"{line:<48}  # {loaded.origins[dotted]}" if origin else line


def commented(text: str) -> Iterator[str]:
    yield from (f"# {line}" for line in text.splitlines())


def as_toml(dotted: str, value: object) -> str:
    """Return the value on one line of TOML; a size gets its unit."""
    if is_size(dotted) and isinstance(value, int):
        value = format_size(value)
    return _inline_toml(value)


def _inline_toml(value: object) -> str:
    if isinstance(value, dict):
        pairs = (f"{_inline_toml(key)} = {_inline_toml(item)}" for key, item in value.items())
        items = ", ".join(pairs)
        return f"{{ {items} }}" if items else "{}"
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
