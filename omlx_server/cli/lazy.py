"""The one place that imports by name: what is heavy is loaded only by the command that needs it."""

import importlib
from types import ModuleType


def load(module: str) -> ModuleType:
    return importlib.import_module(f"omlx_server.{module}")
