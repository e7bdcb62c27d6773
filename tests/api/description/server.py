"""A server with a model of each kind; one takes images. The one that chats thinks first, and reads
and writes little, so that the longest answers take no time."""

from pathlib import Path

from tests.api.conftest import THINKING
from tests.text import makers
from tests.tiny_models import save_tiny
from tests.vision_models import save_vision

KEY = "a-key-of-the-tests"
CHAT, SEEING, EMBEDDING, RANKING = "short", "with_vision", "minilm", "ranker"
LEFTOVER = "leftover"
"""The name of what is no model."""
_CONTEXT = 1024


def save_chat(models: Path) -> Path:
    """The directory of models, with those that chat in it."""
    path = makers.save(models / CHAT, "byte_level", THINKING)
    vocab = makers.FAMILIES["byte_level"]().get_vocab_size()
    save_tiny(path, "llama", vocab_size=vocab, max_position_embeddings=_CONTEXT)
    save_vision(models / SEEING)
    (models / LEFTOVER).mkdir()
    (models / LEFTOVER / "config.json").write_text("{}")
    return models


def settings_of(*directories: Path) -> list[str]:
    return [
        f"models.dirs={','.join(map(str, directories))}",
        f"models.embedding={EMBEDDING}",
        f"models.reranker={RANKING}",
        f"auth.api_keys={KEY}",
        "scheduler.max_queue=512",
    ]
