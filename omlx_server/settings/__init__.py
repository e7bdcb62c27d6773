"""Settings: what there is (`sections`), how values are written (`types`, `sizes`), where they come
from (`layers`), what is said of them (`values`, `advice`, `schema`), and how their file is changed
(`edit`)."""

from omlx_server.settings.advice import warnings
from omlx_server.settings.layers import (
    Loaded,
    check_key,
    check_text,
    find_config,
    load,
    nearest,
    read_config,
    search_path,
)
from omlx_server.settings.sections import KEYS, Cache, Settings
from omlx_server.settings.sizes import format_size
from omlx_server.settings.types import parse_size
from omlx_server.settings.values import expected, is_size

__all__ = [
    "KEYS",
    "Cache",
    "Loaded",
    "Settings",
    "check_key",
    "check_text",
    "expected",
    "find_config",
    "format_size",
    "is_size",
    "load",
    "nearest",
    "parse_size",
    "read_config",
    "search_path",
    "warnings",
]
