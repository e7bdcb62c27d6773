"""The few settings that can still be used when the others are wrong."""

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omlx_server.errors import ConfigError
from omlx_server.settings.layers import env_name
from omlx_server.settings.sections import FIELDS
from omlx_server.settings.types import number


@dataclass(frozen=True, slots=True)
class Salvaged:
    """Where a server would listen and write its log."""

    host: str
    port: int
    log_file: str
    uds: str = ""


def salvage(
    config: Path | None,
    overrides: Mapping[str, str],
    environ: Mapping[str, str] = os.environ,
) -> Salvaged:
    """For each key the strongest layer that has a valid value, else the default. Never raises."""
    layers = (_typed(overrides), _typed(_by_key(environ)), _from_file(config))

    def valid(dotted: str) -> Any:
        field = FIELDS[dotted]
        for layer in layers:
            try:
                if dotted in layer:
                    return field.taken(layer[dotted])
            except (ValueError, ConfigError):
                continue
        return field.default

    return Salvaged(
        valid("server.host"), valid("server.port"), valid("logging.file"), valid("server.uds")
    )


def _typed(texts: Mapping[str, str]) -> dict[str, object]:
    """Flags and variables are texts, whatever they mean."""
    return {
        key: number(text.strip()) if key == "server.port" else text for key, text in texts.items()
    }


def _by_key(environ: Mapping[str, str]) -> dict[str, str]:
    keys = ("server.host", "server.port", "server.uds", "logging.file")
    return {key: environ[env_name(key)] for key in keys if env_name(key) in environ}


def _from_file(config: Path | None) -> dict[str, object]:
    try:
        document = tomllib.loads(config.read_text(encoding="utf-8-sig")) if config else {}
    except (OSError, ValueError):
        return {}
    return {
        f"{section}.{key}": value
        for section, table in document.items()
        if isinstance(table, dict)
        for key, value in table.items()
    }
