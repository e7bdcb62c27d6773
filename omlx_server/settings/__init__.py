"""The settings: their sections and keys (`sections`), what single models have otherwise
(`overrides`), the types and texts of values (`types`), the layers that values come from (`layers`),
checks, warnings and the JSON schema (`values`, `advice`, `json_schema`), and changes of the config
file (`edit`, `whole_file`)."""

from omlx_server.settings.advice import warnings
from omlx_server.settings.layers import Loaded, find_config, load
from omlx_server.settings.sections import KEYS, CacheSettings, Settings

__all__ = ["KEYS", "CacheSettings", "Loaded", "Settings", "find_config", "load", "warnings"]
