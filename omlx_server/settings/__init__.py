"""Settings: what there is (`sections`), how values are written (`types`), where they come from
(`layers`), and what is said of them (`values`)."""

from omlx_server.settings.layers import Loaded, find_config, load, nearest, search_path
from omlx_server.settings.sections import KEYS, Cache, Settings
from omlx_server.settings.types import format_size, parse_size
from omlx_server.settings.values import expected, is_size

__all__ = [
    "KEYS",
    "Cache",
    "Loaded",
    "Settings",
    "expected",
    "find_config",
    "format_size",
    "is_size",
    "load",
    "nearest",
    "parse_size",
    "search_path",
]
