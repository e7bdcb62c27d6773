"""The `system_fingerprint` of OpenAI's API: a short name of what computed an answer. Any thread.

Where it is equal, equal requests with equal seeds are computed alike: with the same weights, config
and tokenizer, the same format of keys and values, on the same device, by the same versions.
"""

import hashlib
from importlib import metadata
from pathlib import Path

from omlx_server import __version__
from omlx_server.compute.hardware import device
from omlx_server.compute.kv.schemes.base import Scheme
from omlx_server.compute.model.fingerprint import fingerprint

_DIGITS = 12


def system_fingerprint(path: Path, scheme: Scheme | None) -> str:
    """The fingerprint for the model in the directory `path`, with keys and values in the format of
    `scheme`, or plain ones for None.

    Only samples of the weights are read: so the name does not depend on whether there is a cold
    tier, and a large model takes a moment.

    Raises:
        OSError: a file of the model can't be read.
    """
    libraries = [f"{name} {metadata.version(name)}" for name in ("mlx", "mlx-lm")]
    caches = scheme.name if scheme else "plain"
    parts = [fingerprint(path), caches, device.name(), f"omlx_server {__version__}", *libraries]
    return f"fp_{hashlib.sha256('; '.join(parts).encode()).hexdigest()[:_DIGITS]}"
