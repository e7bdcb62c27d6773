"""A server with a tiny model that thinks, for all tests of `chat`."""

import json
from collections.abc import Iterator
from pathlib import Path

import mlx.core as mx
import pytest

from tests.api.conftest import THINKING
from tests.api.harness import ServerProcess, serving
from tests.text import makers
from tests.tiny_models import save_tiny

THINKING_BUDGET = 8
CONTEXT = 4096


@pytest.fixture(scope="session")
def thinker_settings(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Of a server with `thinker`: it thinks for a few tokens, then answers for as many as it may.
    Its context is 4,096 tokens, and a token is a byte. It has the presets `brief` and `long`."""
    models = tmp_path_factory.mktemp("models")
    vocab = makers.FAMILIES["byte_level"]().get_vocab_size()
    path = makers.save(models / "thinker", "byte_level", THINKING)
    save_tiny(path, "llama", vocab_size=vocab, max_position_embeddings=CONTEXT)
    _never_ends(path)
    presets = {"brief": {"max_tokens": 3}, "long": {"max_tokens": 30}}
    kwargs = {"thinking_budget": THINKING_BUDGET}
    own = {"thinker": {"chat_template_kwargs": kwargs, "presets": presets}}
    sets = [f"models.dirs={models}", "memory.activation_reserve=64MB"]
    return [*sets, f"models.overrides={json.dumps(own)}"]


@pytest.fixture(scope="session")
def thinker(
    thinker_settings: list[str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    with serving("thinker", tmp_path_factory.mktemp("thinker"), *thinker_settings) as server:
        yield server


def _never_ends(model: Path) -> None:
    """Take the ends of a turn from what a greedy answer may choose: their logits become zero."""
    file = str(model / "model.safetensors")
    weights = mx.load(file)
    assert isinstance(weights, dict)
    known = makers.FAMILIES["byte_level"]()
    for text in makers.special_texts("byte_level"):
        weights["model.embed_tokens.weight"][known.token_to_id(text)] = 0
    mx.save_safetensors(file, weights, metadata={"format": "mlx"})
