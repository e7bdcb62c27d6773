"""The settings: sections and keys, overrides of single models, layers, checks, and the config
file."""

from omlx_server.settings.advice import warnings
from omlx_server.settings.layers import Loaded, find_config, find_problems, load
from omlx_server.settings.model_sections import CacheSettings
from omlx_server.settings.sections import KEYS, Settings

__all__ = [
    "KEYS",
    "CacheSettings",
    "Loaded",
    "Settings",
    "find_config",
    "find_problems",
    "load",
    "warnings",
]
