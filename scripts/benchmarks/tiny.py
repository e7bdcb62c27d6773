"""A one-layer model with random weights: whatever takes time around it is not the model.

Its tokens are single ASCII characters, so that each one is a piece of text and an event of its
own. Its tokenizer ends no answer: the scores of the control tokens are zero, others are above.
"""

import json
from pathlib import Path

import mlx.core as mx
import numpy as np
import numpy.typing as npt
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

_SPECIALS = ("<|im_start|>", "<|im_end|>")
_TEMPLATE = "{% for m in messages %}{{ m['content'] }}\n{% endfor %}"
_HIDDEN = 64
_WIDTH = 96
_KV = 32

Matrix = npt.NDArray[np.float32]


def save(directory: Path) -> Path:
    """Write the model directory and return it."""
    directory.mkdir(parents=True)
    vocab = _save_tokenizer(directory)
    config = {
        "model_type": "llama",
        "hidden_size": _HIDDEN,
        "num_hidden_layers": 1,
        "intermediate_size": _WIDTH,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-5,
        "vocab_size": vocab,
        "max_position_embeddings": 4096,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "eos_token_id": 1,
    }
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    weights = {name: mx.array(values) for name, values in _weights(vocab).items()}
    mx.save_safetensors(str(directory / "model.safetensors"), weights, metadata={"format": "mlx"})
    return directory


def _save_tokenizer(directory: Path) -> int:
    """Returns the size of the vocabulary."""
    characters = [chr(code) for code in range(33, 127)] + ["Ġ", "Ċ"]  # byte-level space, newline
    vocab = {token: id for id, token in enumerate([*_SPECIALS, *characters])}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(text, special=True) for text in _SPECIALS])
    backend.save(str(directory / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": _SPECIALS[0],
        "eos_token": _SPECIALS[1],
        "clean_up_tokenization_spaces": False,
        "chat_template": _TEMPLATE,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return len(vocab)


def _weights(vocab: int) -> dict[str, Matrix]:
    source = np.random.default_rng(0)

    def matrix(rows: int, columns: int) -> Matrix:
        return source.standard_normal((rows, columns), np.float32) / np.float32(columns**0.5)

    layer = "model.layers.0"
    head = matrix(vocab, _HIDDEN)
    head[: len(_SPECIALS)] = 0
    return {
        "model.embed_tokens.weight": matrix(vocab, _HIDDEN),
        "model.norm.weight": np.ones(_HIDDEN, np.float32),
        "lm_head.weight": head,
        f"{layer}.input_layernorm.weight": np.ones(_HIDDEN, np.float32),
        f"{layer}.post_attention_layernorm.weight": np.ones(_HIDDEN, np.float32),
        f"{layer}.self_attn.q_proj.weight": matrix(_HIDDEN, _HIDDEN),
        f"{layer}.self_attn.k_proj.weight": matrix(_KV, _HIDDEN),
        f"{layer}.self_attn.v_proj.weight": matrix(_KV, _HIDDEN),
        f"{layer}.self_attn.o_proj.weight": matrix(_HIDDEN, _HIDDEN),
        f"{layer}.mlp.gate_proj.weight": matrix(_WIDTH, _HIDDEN),
        f"{layer}.mlp.up_proj.weight": matrix(_WIDTH, _HIDDEN),
        f"{layer}.mlp.down_proj.weight": matrix(_HIDDEN, _WIDTH),
    }
