"""`omlx-server config`: the settings in force, written as the TOML that would set them.

Secrets are never printed: a key shows as stars, in TOML and in JSON.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import BaseModel, SecretStr

from omlx_server import settings
from omlx_server.cli.options import load_settings
from omlx_server.settings.schema import json_schema


def show(*, origin: bool, as_json: bool, config: Path | None, sets: Sequence[str]) -> int:
    loaded = load_settings(config, sets)
    print(_json(loaded) if as_json else "\n".join(_toml(loaded, origin=origin)))
    return 0


def get(*, key: str, as_json: bool, config: Path | None, sets: Sequence[str]) -> int:
    settings.check_key(key, "")
    loaded = load_settings(config, sets)
    value = _value_of(loaded.settings, key)
    if as_json:
        print(json.dumps(_plain(value), ensure_ascii=False))
    else:
        print(value if isinstance(value, str | Path) else written(key, value))
    return 0


def validate(*, config: Path | None) -> int:
    loaded = load_settings(config)
    warn(loaded)
    print(f"{loaded.source or 'No config file: the defaults and the environment'}: valid")
    return 0


def schema() -> int:
    print(json.dumps(json_schema(), indent=2, ensure_ascii=False))
    return 0


def path(*, config: Path | None) -> int:
    found = settings.find_config(config)
    if found:
        print(found.absolute())
        return 0
    places = ", ".join(str(place) for place in settings.search_path())
    say(f"no config file: defaults apply. Looked for {places}")
    return 1


def _value_of(values: settings.Settings, dotted: str) -> object:
    section, _, key = dotted.partition(".")
    return getattr(getattr(values, section), key)


def warn(loaded: settings.Loaded) -> None:
    for warning in settings.warnings(loaded):
        say(f"warning: {warning}")


def say(text: str) -> None:
    print(text, file=sys.stderr)


def _json(loaded: settings.Loaded) -> str:
    values = {
        name: {key: _plain(value) for key, value in section} for name, section in loaded.settings
    }
    source = str(loaded.source) if loaded.source else None
    document = {"source": source, "settings": values, "origins": dict(loaded.origins)}
    return json.dumps(document, indent=2, ensure_ascii=False)


def _toml(loaded: settings.Loaded, *, origin: bool) -> Iterator[str]:
    yield f"# config file: {loaded.source or 'none found'}"
    for name, section in loaded.settings:
        yield f"\n[{name}]"
        for key, value in section:
            dotted = f"{name}.{key}"
            line = f"{key} = {written(dotted, value)}"
            yield f"{line:<48}  # {loaded.origins[dotted]}" if origin else line


def _plain(value: object) -> object:
    """As JSON can hold it; numbers without a needless fraction."""
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, BaseModel):
        said = value.model_fields_set
        return {name: _plain(item) for name, item in value if name in said and item is not None}
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return str(value) if isinstance(value, Path | SecretStr) else value


def written(dotted: str, value: object) -> str:
    """As TOML writes it. Its texts, lists, numbers and booleans are those of JSON."""
    if settings.is_size(dotted) and isinstance(value, int):
        value = settings.format_size(value)
    return json.dumps(_plain(value), ensure_ascii=False)
