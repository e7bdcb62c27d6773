"""Tiny reading models with tokenizers, as directories: a cross-encoder and a judge."""

import json
from pathlib import Path

from tokenizers import AddedToken

from tests.api.conftest import CHATML
from tests.compute.embed import tiny
from tests.data.embed.seeded import make_weights
from tests.text import makers
from tests.text.ranking.tokenizers import bert
from tests.tiny_models import save_tiny

PAIR_TOKENS = 64
JUDGE_TOKENS = 1024
_CASE = "BertForSequenceClassification"


def save_ranker(directory: Path) -> Path:
    """A BERT that scores pairs of at most PAIR_TOKENS."""
    backend = bert()
    sizes = {"vocab_size": backend.get_vocab_size(), "max_position_embeddings": PAIR_TOKENS}
    width = tiny.cases()[_CASE]["config"]["hidden_size"]
    own = {"word": sizes["vocab_size"], "position": PAIR_TOKENS}
    changed = {f"bert.embeddings.{name}_embeddings.weight": [n, width] for name, n in own.items()}
    shapes = {**tiny.cases()[_CASE]["shapes"], **changed}
    tiny.save(directory, _CASE, make_weights(shapes), **sizes)
    backend.save(str(directory / "tokenizer.json"))
    return directory


def save_judge(directory: Path) -> Path:
    """A language model that can chat, and knows the words yes and no."""
    backend = makers.byte_level()
    backend.add_tokens([AddedToken(word, normalized=False) for word in ("yes", "no")])
    makers.save(directory, "byte_level", CHATML)
    backend.save(str(directory / "tokenizer.json"))
    config = {"vocab_size": backend.get_vocab_size(), "architectures": ["Qwen3ForCausalLM"]}
    save_tiny(directory, "qwen3", max_position_embeddings=JUDGE_TOKENS, **config)
    assert json.loads((directory / "config.json").read_text())["model_type"] == "qwen3"
    return directory
