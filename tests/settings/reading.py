"""Settings of a file, flags and an environment, for tests."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from omlx_server import settings
from omlx_server.errors import ConfigError
from omlx_server.settings import load


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def refusal(
    config: Path | None = None,
    overrides: Mapping[str, str] = MappingProxyType({}),
    environ: Mapping[str, str] = MappingProxyType({}),
) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load(config, overrides, environ)
    assert "\n" not in caught.value.message + caught.value.hint
    return caught.value


def value_of(loaded: settings.Loaded, dotted: str) -> object:
    section, key = dotted.split(".")
    return dict(dict(loaded.settings)[section])[key]
