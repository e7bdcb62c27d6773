"""Reads, as well as it can, the few settings that a server needs to report a wrong config."""

import os
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omlx_server.errors import ConfigError
from omlx_server.settings.layers import env_name
from omlx_server.settings.sections import FIELDS
from omlx_server.settings.values import LayerValue, read_value

_KEYS = ("server.host", "server.port", "logging.file", "server.uds")  # in Salvaged's order


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
