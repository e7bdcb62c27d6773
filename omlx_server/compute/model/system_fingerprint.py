"""What computed an answer, as a short name: the `system_fingerprint` of OpenAI's API. Any thread.

Equal names mean that equal requests with equal seeds are computed alike: the same weights, config
and tokenizer, the same form of keys and values, the same device, the same versions.
"""

import hashlib
from importlib import metadata
from pathlib import Path

from omlx_server import __version__
from omlx_server.compute.hardware import device
from omlx_server.compute.kv.base import Scheme
from omlx_server.compute.model.fingerprint import fingerprint

_DIGITS = 12


def system_fingerprint(path: Path, scheme: Scheme | None) -> str:
    """The name of what computes answers: the model in a directory, with keys and values held as
    `scheme` has it.

    The weights are read in samples whatever the settings are: with a cold tier or without one the
    name stays, and a large model is named in a moment.

    Raises:
        OSError: the directory can't be read.
    """
    libraries = [f"{name} {metadata.version(name)}" for name in ("mlx", "mlx-lm")]
    caches = scheme.name if scheme else "plain"
    parts = [fingerprint(path), caches, device.name(), f"omlx_server {__version__}", *libraries]
    return f"fp_{hashlib.sha256('; '.join(parts).encode()).hexdigest()[:_DIGITS]}"
