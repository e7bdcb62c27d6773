"""Loads the settings from their layers: flag or --set, variable OMLX_SECTION__KEY, config file,
fallback of the calling program, default. The first layer that has a key wins. A broken
file is salvaged key by key."""

import difflib
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from omlx_server.errors import ConfigError, PlaceUnusable
from omlx_server.settings.fields import Section
from omlx_server.settings.override_keys import TABLE, keys_in, table_problems
from omlx_server.settings.overrides import adapter_from, path_from, with_paths_from
from omlx_server.settings.sections import FIELDS, KEYS, SECTIONS, Settings
from omlx_server.settings.types import own_place
from omlx_server.settings.unknown_keys import SEE_ALL, unknown_key_error
from omlx_server.settings.values import LayerValue, read_value

USER_CONFIG = "~/.config/omlx_server/config.toml"
TOKEN_VARIABLE = "OMLX_ADMIN_TOKEN"
"""Holds the admin token (admin_token.py). It is no setting, though its name looks like one of the
section `admin`."""
# What makes paths absolute that are relative to the directory of the config file.
_PATHS = {
    TABLE: with_paths_from,
    "adapters.directory": path_from,
    "adapters.default": adapter_from,
}
# tomllib's messages for a text that does not end.
_ENDLESS_TEXT = ("Unterminated string", r"Illegal character '\n'", "Expected \"'")
_KEYS = ("server.host", "server.port", "logging.file", "server.uds")  # in Salvaged's order


@dataclass(frozen=True, slots=True)
class Loaded:
    """Settings, the config file that they were read from, and the arguments of `load`."""

    settings: Settings
    source: Path | None
    origins: Mapping[str, str]
    """Where the value of each "section.key" comes from: flag | env NAME | file PATH | fallback |
    default."""
    named: Path | None = None
    overrides: Mapping[str, str] = field(default_factory=dict, repr=False)
    fallbacks: Mapping[str, str] = field(default_factory=dict, repr=False)

    def load_again(self) -> "Loaded":
        return load(self.named, self.overrides, fallbacks=self.fallbacks)


def load(
    config: Path | None = None,
    overrides: Mapping[str, str] = MappingProxyType({}),
    environ: Mapping[str, str] = os.environ,
    fallbacks: Mapping[str, str] = MappingProxyType({}),
) -> Loaded:
    """Return the settings in force. `overrides` and `fallbacks` map "section.key" to texts of
    flags. Raises ConfigError for an unknown key, a value that is not allowed, or a missing named
    file; PlaceUnusable for the config file or the home directory."""
    source = find_config(config, environ)
    entries = _from_flags(fallbacks, "fallback")
    if source:
        entries |= _from_text(read_config(source), source)
    entries |= _from_environ(environ)
    entries |= _from_flags(overrides, "flag")
    origins = {key: entries[key].origin if key in entries else "default" for key in KEYS}
    set_by_flags = {key for key, origin in origins.items() if origin == "flag"}
    settings = _settings_of(entries).without_overrides(set_by_flags)
    return Loaded(settings, source, MappingProxyType(origins), config, overrides, fallbacks)


def search_path() -> tuple[Path, ...]:
    """Return where config files are looked for. Raises PlaceUnusable without a home directory."""
    return own_place(USER_CONFIG), Path("/etc/omlx_server/config.toml")


def named_config(config: Path | None, environ: Mapping[str, str]) -> Path | None:
    """Return the config file that the user names: by a flag, else by OMLX_CONFIG."""
    return config or (Path(environ["OMLX_CONFIG"]) if environ.get("OMLX_CONFIG") else None)


def find_config(config: Path | None = None, environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return the config file in use, if any. Raises ConfigError if the named file does not
    exist, PlaceUnusable if a place can't be looked at."""
    named = named_config(config, environ)
    path = named or next(filter(_is_there, search_path()), None)
    if named and not _is_there(named):
        by = "--config" if config else "OMLX_CONFIG"
        raise ConfigError(f"config file {named} not found ({by})", hint="check the path")
    if path and path.is_dir():
        raise _directory_error(path)
    return path


def _directory_error(path: Path) -> PlaceUnusable:
    hint = f"name a file, such as {path / 'config.toml'}, or move the directory away"
    return PlaceUnusable(f"config file {path} can't be read: it is a directory", hint=hint)


def _is_there(path: Path) -> bool:
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise PlaceUnusable(f"config file {path} can't be read: {error.strerror}") from None
    return True


def check_text(text: str, path: Path, environ: Mapping[str, str] = os.environ) -> None:
    """Raise ConfigError unless a config with this text is valid with `environ`."""
    _settings_of(_from_text(text, path) | _from_environ(environ))


def find_problems(
    config: Path | None = None,
    overrides: Mapping[str, str] = MappingProxyType({}),
    environ: Mapping[str, str] = os.environ,
) -> list[ConfigError]:
    """Return all errors of which `load` raises the first. What contradicts each other is only
    looked for if each value alone is right."""
    errors: list[ConfigError] = []
    entries: dict[str, LayerValue] = {}
    sections: dict[str, Any] = {}
    try:
        if source := find_config(config, environ):
            errors += _read_text(read_config(source), source, entries)
    except ConfigError as error:
        errors.append(error)
    errors += _read_environ(environ, entries)
    errors += _read_flags(overrides, "flag", entries)
    errors += _read_sections(entries, sections)
    return errors or list(_UncheckedSettings(**sections).contradictions())


class _UncheckedSettings(Settings, frozen=True):
    def __post_init__(self) -> None:
        pass


def _raise_first(errors: Iterable[ConfigError]) -> None:
    for error in errors:
        raise error


def _settings_of(entries: Mapping[str, LayerValue]) -> Settings:
    sections: dict[str, Section] = {}
    _raise_first(_read_sections(entries, sections))
    return Settings.of(sections)


def _read_sections(
    entries: Mapping[str, LayerValue], sections: dict[str, Section]
) -> Iterator[ConfigError]:
    """Put all sections into `sections`, and yield the errors."""
    values: dict[str, dict[str, object]] = {name: {} for name in SECTIONS}
    table_errors = list(table_problems(entries[TABLE])) if TABLE in entries else []
    yield from table_errors
    for dotted, entry in entries.items():
        if dotted == TABLE and table_errors:
            continue
        section, key = dotted.split(".")
        try:
            values[section][key] = read_value(dotted, entry)
        except ConfigError as error:
            yield error
    for name, kind in SECTIONS.items():
        try:
            sections[name] = kind(**values[name])
        except ConfigError as error:
            yield error


def keys_of_file(path: Path) -> list[str]:
    """Return the keys that a config file sets, also in overrides. Raises ConfigError."""
    entries = _from_text(read_config(path), path)
    tables = entries.pop(TABLE).value if TABLE in entries else {}
    return [*entries, *keys_in(tables)]


def _from_text(text: str, path: Path) -> dict[str, LayerValue]:
    entries: dict[str, LayerValue] = {}
    _raise_first(_read_text(text, path, entries))
    return entries


def _read_text(text: str, path: Path, entries: dict[str, LayerValue]) -> Iterator[ConfigError]:
    """Put a config file's values into `entries`, and yield the errors. Raises ConfigError if it is
    no TOML."""
    origin = f"file {path}"
    for section, table in parse_toml(text, path).items():
        if section not in SECTIONS:
            yield unknown_key_error(section, origin)
        elif not isinstance(table, dict):
            yield ConfigError(f"{section}: expected a table [{section}] ({origin})")
        else:
            for key, value in table.items():
                if f"{section}.{key}" in FIELDS:
                    entries[f"{section}.{key}"] = LayerValue(value, origin, is_text=False)
                else:
                    yield unknown_key_error(f"{section}.{key}", origin)
    for key, make_absolute in _PATHS.items():
        if entry := entries.get(key):
            entries[key] = replace(entry, value=make_absolute(entry.value, path.parent))


def read_config(path: Path) -> str:
    """Return a config file's text. Raises PlaceUnusable, or ConfigError if it is not UTF-8."""
    try:
        if path.is_dir():
            raise _directory_error(path)
        if not path.is_file():  # reading a pipe could block
            raise PlaceUnusable(f"config file {path} can't be read: it is no file")
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise PlaceUnusable(f"config file {path} can't be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"config file {path} can't be read: it is not UTF-8") from None


def parse_toml(text: str, path: Path) -> dict[str, Any]:
    """Parse a config file's text. Raises ConfigError with the place of the error."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        problem, line, column = _toml_problem(str(error), text)
        raise ConfigError(
            f"{path}, line {line}, column {column}: invalid TOML: {problem}",
            hint=_toml_hint(problem, text.split("\n")[line - 1], column),
        ) from None


def _toml_problem(message: str, text: str) -> tuple[str, int, int]:
    """Return problem, line and column of tomllib's message, which may say "end of document"."""
    problem, _, place = message.partition(" (at ")
    if numbers := re.fullmatch(r"line (\d+), column (\d+)\)", place):
        return problem, int(numbers[1]), int(numbers[2])
    lines = text.split("\n")
    return problem, len(lines), len(lines[-1]) + 1


def _toml_hint(problem: str, line: str, column: int) -> str:
    """Return a hint if a text without quotes may be the cause."""
    before, after = line[: column - 1], line[column - 1 :].strip()
    if problem.startswith("Invalid value"):
        lacks_quotes = bool(after) and after[0] not in "#,]}"
    elif problem.startswith("Expected newline"):
        lacks_quotes = "=" in before
    else:
        lacks_quotes = problem.startswith(_ENDLESS_TEXT)
    return 'texts need quotes, as in host = "127.0.0.1"' if lacks_quotes else ""


def _from_environ(environ: Mapping[str, str]) -> dict[str, LayerValue]:
    entries: dict[str, LayerValue] = {}
    _raise_first(_read_environ(environ, entries))
    return entries


def _read_environ(
    environ: Mapping[str, str], entries: dict[str, LayerValue]
) -> Iterator[ConfigError]:
    section_prefixes = tuple(f"OMLX_{section.upper()}_" for section in SECTIONS)
    keys_by_name = {env_name(key): key for key in KEYS}
    for name, text in environ.items():
        if name in keys_by_name:
            entries[keys_by_name[name]] = LayerValue(text, f"env {name}", is_text=True)
        elif name == TOKEN_VARIABLE:
            continue
        elif name.startswith(section_prefixes) or (name.startswith("OMLX_") and "__" in name):
            near = difflib.get_close_matches(name, keys_by_name, n=1, cutoff=0.5)
            yield ConfigError(
                f"unknown setting {name} in the environment",
                hint=f"did you mean {near[0]}?" if near else SEE_ALL,
            )


def env_name(dotted: str) -> str:
    return f"OMLX_{dotted.upper().replace('.', '__')}"


def _from_flags(texts: Mapping[str, str], origin: str) -> dict[str, LayerValue]:
    entries: dict[str, LayerValue] = {}
    _raise_first(_read_flags(texts, origin, entries))
    return entries


def _read_flags(
    texts: Mapping[str, str], origin: str, entries: dict[str, LayerValue]
) -> Iterator[ConfigError]:
    for dotted, text in texts.items():
        if dotted in FIELDS:
            entries[dotted] = LayerValue(text, origin, is_text=True)
        else:
            yield unknown_key_error(dotted, origin)


@dataclass(frozen=True, slots=True)
class Salvaged:
    """The address to listen at, and the log file ("" for stderr)."""

    host: str
    port: int
    log_file: str
    uds: str = ""


def salvage(
    config: Path | None,
    overrides: Mapping[str, str],
    environ: Mapping[str, str] = os.environ,
) -> Salvaged:
    """Take each key from the strongest layer with a valid value, else its default. Never raises."""
    variables = {key: environ[env_name(key)] for key in _KEYS if env_name(key) in environ}
    layers = (_from_texts(overrides), _from_texts(variables), _from_file(config))

    def first_valid(dotted: str) -> Any:
        for layer in layers:
            with suppress(ConfigError):
                if dotted in layer:
                    return read_value(dotted, layer[dotted])
        return FIELDS[dotted].default

    return Salvaged(*map(first_valid, _KEYS))


def _from_texts(texts: Mapping[str, str]) -> dict[str, LayerValue]:
    return {key: LayerValue(text, "", is_text=True) for key, text in texts.items()}


def _from_file(config: Path | None) -> dict[str, LayerValue]:
    try:
        document = tomllib.loads(config.read_text(encoding="utf-8-sig")) if config else {}
    except (OSError, ValueError):
        return {}
    return {
        f"{section}.{key}": LayerValue(value, "", is_text=False)
        for section, table in document.items()
        if isinstance(table, dict)
        for key, value in table.items()
    }
