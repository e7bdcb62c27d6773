"""Converts the tokenizer of a GGUF file to Hugging Face's tokenizer.json and tokenizer_config.json.
Pure.

Only the pre-tokenizers in PRE_TOKENIZERS are known: llama.cpp stores the name of a split rule, not
the rule, and a wrong rule would give wrong ids without an error.
"""

from collections.abc import Callable
from typing import Any

from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Sequence

from omlx_server.models.gguf.fields import GgufFields, not_convertible


def _smollm() -> PreTokenizer:
    byte_level = ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=True)
    return Sequence([Digits(individual_digits=True), byte_level])


PRE_TOKENIZERS: dict[str, Callable[[], PreTokenizer]] = {"smollm": _smollm}

# Types of tokens, as GGUF numbers them.
_CONTROL, _USER_DEFINED = 3, 4

# Ends of a text or of a turn, by name: a chat model may close its answer with any of them.
END_TOKENS = frozenset({"<|endoftext|>", "<|im_end|>", "<|eot_id|>", "</s>"})


def build_tokenizer(fields: GgufFields) -> Tokenizer:
    if fields.text("tokenizer.ggml.model") != "gpt2":
        raise not_convertible("its tokenizer is not a byte-level BPE")
    pre = fields.text("tokenizer.ggml.pre")
    if pre not in PRE_TOKENIZERS:
        raise not_convertible(f"its pre-tokenizer {pre!r} is not known")
    tokens = fields.sequence("tokenizer.ggml.tokens")
    vocab = {token: i for i, token in enumerate(tokens)}
    # A space inside a token is written Ġ, so the one space separates the two parts.
    left_right = (merge.split(" ", 1) for merge in fields.sequence("tokenizer.ggml.merges"))
    # unk_token stays empty as in the original: bytes without a token of their own are dropped.
    tokenizer = Tokenizer(BPE(vocab, [(left, right) for left, right in left_right]))
    tokenizer.pre_tokenizer = PRE_TOKENIZERS[pre]()
    tokenizer.decoder = ByteLevelDecoder()
    _add_tokens(tokenizer, tokens, fields.sequence("tokenizer.ggml.token_type"))
    return tokenizer


def tokenizer_config(fields: GgufFields, max_length: int) -> dict[str, Any]:
    """The content of tokenizer_config.json, which transformers needs beside tokenizer.json. It
    holds the chat template, too. `max_length` in tokens."""
    tokens = fields.sequence("tokenizer.ggml.tokens")
    config: dict[str, Any] = {
        "add_bos_token": fields.flag("tokenizer.ggml.add_bos_token"),
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_length,
        # Takes tokenizer.json as it is; the GPT-2 class would put its own split rule in place.
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    for role in ("bos", "eos", "unknown", "padding"):
        key = f"tokenizer.ggml.{role}_token_id"
        if key in fields:
            config[_HF_ROLES[role]] = tokens[fields.integer(key)]
    if "tokenizer.chat_template" in fields:
        config["chat_template"] = fields.text("tokenizer.chat_template")
    return config


def end_ids(fields: GgufFields) -> list[int]:
    """The ids that end an answer, the declared one first."""
    eos = fields.integer("tokenizer.ggml.eos_token_id")
    tokens = fields.sequence("tokenizer.ggml.tokens")
    others = [i for i, token in enumerate(tokens) if token in END_TOKENS and i != eos]
    return [eos, *others]


_HF_ROLES = {
    "bos": "bos_token",
    "eos": "eos_token",
    "unknown": "unk_token",
    "padding": "pad_token",
}


def _add_tokens(tokenizer: Tokenizer, tokens: Any, types: Any) -> None:
    for token, kind in zip(tokens, types, strict=True):
        if kind == _CONTROL:
            tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True)])
        elif kind == _USER_DEFINED:
            tokenizer.add_tokens([AddedToken(token, normalized=False)])
