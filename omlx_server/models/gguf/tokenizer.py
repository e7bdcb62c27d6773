"""Converts the starter's tokenizer from GGUF. GGUF stores only the name of a split rule
("smollm")."""

from collections.abc import Mapping
from typing import Any

from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence

# Types of tokens, as GGUF numbers them.
_CONTROL, _USER_DEFINED = 3, 4

# Ends of a text or of a turn, by name: a chat model may close its answer with any of them.
END_TOKENS = frozenset({"<|endoftext|>", "<|im_end|>", "<|eot_id|>", "</s>"})

_HF_ROLES = {
    "bos": "bos_token",
    "eos": "eos_token",
    "unknown": "unk_token",
    "padding": "pad_token",
}


def build_tokenizer(fields: Mapping[str, Any]) -> Tokenizer:
    tokens = fields["tokenizer.ggml.tokens"]
    vocab = {token: i for i, token in enumerate(tokens)}
    # A space inside a token is written Ġ, so the one space separates the two parts.
    left_right = (merge.split(" ", 1) for merge in fields["tokenizer.ggml.merges"])
    # unk_token stays empty as in the original: bytes without a token of their own are dropped.
    tokenizer = Tokenizer(BPE(vocab, [(left, right) for left, right in left_right]))
    byte_level = ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=True)
    tokenizer.pre_tokenizer = Sequence([Digits(individual_digits=True), byte_level])
    tokenizer.decoder = ByteLevelDecoder()
    for token, kind in zip(tokens, fields["tokenizer.ggml.token_type"], strict=True):
        if kind == _CONTROL:
            tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True)])
        elif kind == _USER_DEFINED:
            tokenizer.add_tokens([AddedToken(token, normalized=False)])
    return tokenizer


def tokenizer_config(fields: Mapping[str, Any], max_length: int) -> dict[str, Any]:
    """Return tokenizer_config.json, with the chat template. `max_length` in tokens."""
    tokens = fields["tokenizer.ggml.tokens"]
    roles = {
        name: tokens[fields[f"tokenizer.ggml.{role}_token_id"]] for role, name in _HF_ROLES.items()
    }
    return {
        "add_bos_token": bool(fields.get("tokenizer.ggml.add_bos_token")),
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_length,
        # Takes tokenizer.json as it is; the GPT-2 class would put its own split rule in place.
        "tokenizer_class": "PreTrainedTokenizerFast",
        **roles,
        "chat_template": fields["tokenizer.chat_template"],
    }


def end_ids(fields: Mapping[str, Any]) -> list[int]:
    """Return the ids that end an answer, the declared one first."""
    eos = fields["tokenizer.ggml.eos_token_id"]
    tokens = fields["tokenizer.ggml.tokens"]
    others = [i for i, token in enumerate(tokens) if token in END_TOKENS and i != eos]
    return [eos, *others]
