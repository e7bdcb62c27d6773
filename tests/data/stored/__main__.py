"""Records what this version stores: see `tests/data/stored`."""

import shutil
import sys
import tempfile
from pathlib import Path

from tests.api.conftest import CHATML
from tests.api.harness import serving
from tests.data.stored import HERE, PROMPT, SETTINGS
from tests.text import makers
from tests.tiny_models import save_tiny

_SMALL = {"hidden_size": 32, "head_dim": 16}
_MODELS: dict[str, tuple[str, dict[str, int]]] = {
    "plain": ("llama", _SMALL),
    "quantized": ("llama", _SMALL),
    "checkpoints": ("lfm2", {}),
}


def record(name: str) -> None:
    """A model, the cold tier of a server that has read the prompt, and an archive of it."""
    place = HERE / name
    place.mkdir()
    models = place / "models"
    path = makers.save(models / "org" / "tiny", "byte_level", CHATML)
    vocab = makers.FAMILIES["byte_level"]().get_vocab_size()
    architecture, sizes = _MODELS[name]
    save_tiny(path, architecture, vocab_size=vocab, **sizes)
    with tempfile.TemporaryDirectory() as directory:
        settings = (f"models.dirs={models}", *SETTINGS[name])
        with serving("org/tiny", Path(directory), *settings) as server:
            server.chat(PROMPT, max_tokens=12)
            asked = server.body(PROMPT)
            archive = server.http.post(f"{server.url}/v1/cache/export", json=asked)
            archive.raise_for_status()
            (place / "archive.tar").write_bytes(archive.content)
        shutil.copytree(Path(directory) / "kv", place / "kv")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        record(name)
