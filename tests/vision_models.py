"""Tiny random vision models as directories that a server loads: weights, those of the tower too, a
byte-level tokenizer with the family's tokens, a chat template that shows images, and
preprocessor_config.json."""

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from tests.compute.vision.recorded import tensors
from tests.compute.vision.tiny import CONFIGS
from tests.text import makers

CONTEXT = 8192
_VOCABULARY = ("embed_tokens.weight", "lm_head.weight")
# Of a content that is a list, each image is shown as SHOWN, where it stands.
_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for part in m['content'] %}"
    "{% if part['type'] == 'image' %}SHOWN{% elif part['type'] == 'text' %}{{ part['text'] }}"
    "{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True, slots=True)
class _Family:
    """`ids`: the fields of config.json for the ids of the first tokens of `tokens`. `shown`: what a
    template writes for an image. `preprocessor` is preprocessor_config.json."""

    tokens: tuple[str, ...]
    ids: tuple[str, ...]
    shown: str
    preprocessor: Mapping[str, Any]


_QWEN3 = _Family(
    ("<|image_pad|>", "<|vision_start|>", "<|vision_end|>", "<|video_pad|>"),
    ("image_token_id", "vision_start_token_id", "vision_end_token_id", "video_token_id"),
    "<|vision_start|><|image_pad|><|vision_end|>",
    {
        "image_processor_type": "Qwen2VLImageProcessorFast",
        "patch_size": 4,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "size": {"shortest_edge": 16 * 16, "longest_edge": 128 * 128},
    },
)
_GEMMA3 = _Family(
    ("<image_soft_token>", "<start_of_image>", "<end_of_image>"),
    ("image_token_index", "boi_token_index", "eoi_token_index"),
    "<start_of_image>",
    {
        "image_processor_type": "Gemma3ImageProcessor",
        "size": {"height": 32, "width": 32},
        "image_seq_length": 16,
    },
)
_SMOLVLM = _Family(
    ("<image>", "<fake_token_around_image>", "<global-img>"),
    ("image_token_id",),
    "<image>",
    {
        "image_processor_type": "SmolVLMImageProcessor",
        "size": {"longest_edge": 48},
        "max_image_size": {"longest_edge": 24},
        "image_seq_len": 9,
    },
)
FAMILIES: Mapping[str, _Family] = {"qwen3_vl": _QWEN3, "gemma3": _GEMMA3, "smolvlm": _SMOLVLM}


def save_vision(directory: Path, family: str = "qwen3_vl") -> Path:
    """A model of a family in MLX layout. An image of 64 x 48 pixels has 48 tokens with Qwen3-VL, 16
    with Gemma 3, and 5 tiles of 9 with SmolVLM."""
    known = FAMILIES[family]
    makers.save(directory, "byte_level", _TEMPLATE.replace("SHOWN", known.shown))
    ids, vocab = _add_tokens(directory / "tokenizer.json", known.tokens)
    config = copy.deepcopy(CONFIGS[family]) | dict(zip(known.ids, ids, strict=False))
    for part in (config, config["text_config"]):
        part |= {"vocab_size": vocab} if "vocab_size" in part else {}
    config["text_config"]["max_position_embeddings"] = CONTEXT
    _write(directory / "config.json", config)
    _write(directory / "preprocessor_config.json", known.preprocessor)
    weights = {name: _sized(name, array, vocab) for name, array in tensors(family).items()}
    mx.save_safetensors(str(directory / "model.safetensors"), weights, metadata={"format": "mlx"})
    return directory


def _add_tokens(file: Path, texts: tuple[str, ...]) -> tuple[list[int], int]:
    """The ids of the tokens with these texts, and the size of the vocabulary with them."""
    backend = Backend.from_file(str(file))
    backend.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in texts])
    backend.save(str(file))
    vocabulary = backend.get_vocab()
    return [vocabulary[text] for text in texts], backend.get_vocab_size()


def _sized(name: str, array: mx.array, vocab: int) -> mx.array:
    """A weight, with as many rows as the vocabulary has entries where there is one for each."""
    if not name.endswith(_VOCABULARY):
        return array
    width: int = array.shape[1]
    return mx.random.normal((vocab, width), scale=width**-0.5, key=mx.random.key(len(name)))


def _write(file: Path, value: object) -> None:
    file.write_text(json.dumps(value), encoding="utf-8")
