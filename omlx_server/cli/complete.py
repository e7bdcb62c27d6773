"""What a shell offers for a half-typed word. Each function takes the word and gives the candidates.

Imports nothing of weight: the surface names these functions, and the help must be quick. They say
nothing of what goes wrong; then there is nothing to offer.
"""

from collections.abc import Callable, Iterable

from omlx_server.cli import lazy
from omlx_server.errors import OmlxError


def complete_models(incomplete: str) -> list[str]:
    """Models that are here, the catalogue's, and aliases."""
    return _offered("models", incomplete)


def complete_keys(incomplete: str) -> list[str]:
    """Settings, as SECTION.KEY."""
    return _offered("keys", incomplete)


def complete_clients(incomplete: str) -> list[str]:
    """What `launch` can start."""
    return _offered("clients", incomplete)


def _offered(function: str, incomplete: str) -> list[str]:
    find: Callable[[], Iterable[str]] = getattr(lazy.load("cli.names"), function)
    try:
        return [name for name in find() if name.startswith(incomplete)]
    except (OmlxError, OSError):
        return []
