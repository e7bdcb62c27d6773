"""Completion in the shell. Each function takes a half-typed word and returns the candidates; after
an error it returns none.

This module imports nothing heavy, because the declarations of the commands import it and --help
must be quick.
"""

from omlx_server.errors import OmlxError


def complete_models(incomplete: str) -> list[str]:
    """Names of models on this machine and in the catalogue, and aliases."""
    from omlx_server.cli.shell.model_names import models

    try:
        return [name for name in models() if name.startswith(incomplete)]
    except (OmlxError, OSError):
        return []


def complete_keys(incomplete: str) -> list[str]:
    """Keys of settings, as SECTION.KEY."""
    from omlx_server.settings import KEYS

    return sorted(key for key in KEYS if key.startswith(incomplete))
