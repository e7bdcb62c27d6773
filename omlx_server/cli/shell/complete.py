"""What a shell offers for a half-typed word. Each function takes the word and gives the candidates.

Imports nothing of weight: the surface names these functions, and the help must be quick. They say
nothing of what goes wrong; then there is nothing to offer.
"""

from omlx_server.errors import OmlxError


def complete_models(incomplete: str) -> list[str]:
    """Models that are here, the catalogue's, and aliases."""
    from omlx_server.cli.shell.model_names import models

    try:
        return [name for name in models() if name.startswith(incomplete)]
    except (OmlxError, OSError):
        return []


def complete_keys(incomplete: str) -> list[str]:
    """Settings, as SECTION.KEY."""
    from omlx_server.settings import KEYS

    return sorted(key for key in KEYS if key.startswith(incomplete))
