"""OpenAI's `system_fingerprint`: equal where equal requests are computed alike. Any thread."""

import hashlib
from importlib import metadata
from pathlib import Path

from omlx_server import __version__
from omlx_server.compute.hardware import device
from omlx_server.compute.kv.schemes.base import Scheme
from omlx_server.compute.model.fingerprint import fingerprint

_DIGITS = 12


def system_fingerprint(path: Path, scheme: Scheme | None) -> str:
    """Raises OSError."""
    libraries = [f"{name} {metadata.version(name)}" for name in ("mlx", "mlx-lm")]
    caches = scheme.name if scheme else "plain"
    parts = [fingerprint(path), caches, device.name(), f"omlx_server {__version__}", *libraries]
    return f"fp_{hashlib.sha256('; '.join(parts).encode()).hexdigest()[:_DIGITS]}"
