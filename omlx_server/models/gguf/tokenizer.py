"""Makes a tokenizer from a GGUF file's fields: of merges (byte-level BPE), for which GGUF stores
only the name of a split rule, or of scores (SentencePiece)."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    normalizers,
    pre_tokenizers,
    processors,
)
from tokenizers.models import BPE

from omlx_server.models import json_file
from omlx_server.models.gguf.split_rules import RULES, WHOLE_WORDS_FIRST

# Types of tokens, as GGUF numbers them.
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)
_SPACE = "▁"

_CALL = "<|call|>"
# Ends of a text or of a turn, by name: a chat model may close its answer with any of them.
END_TOKENS = frozenset(
    {"<|endoftext|>", "<|im_end|>", "<|eot_id|>", "</s>", "<end_of_turn>", "<eos>", "<|end|>"}
    | {"<|end_of_text|>", "<|eom_id|>", "<|return|>", _CALL}
    | {"<turn|>", "<|tool_response>"}
)

_HF_ROLES = {
    "bos": "bos_token",
    "eos": "eos_token",
    "unknown": "unk_token",
    "padding": "pad_token",
}


def save_tokenizer(
    fields: Mapping[str, Any], directory: Path, context: int, sampling: Mapping[str, float]
) -> None:
    """Write the tokenizer's files and generation_config.json, with the makers' values of
    `sampling`. Raises ValueError, KeyError or TypeError for fields that can't be used."""
    tokenizer = build_tokenizer(fields)
    ids = {
        "bos_token_id": fields.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": end_ids(fields),
        "pad_token_id": fields.get("tokenizer.ggml.padding_token_id"),
    }
    generation = {name: id for name, id in ids.items() if id is not None}
    json_file.write(directory / "generation_config.json", {**generation, **sampling})
    json_file.write(directory / "tokenizer_config.json", tokenizer_config(fields, context))
    # The last, and at once, since it says that all are there.
    scratch = directory / f".tokenizer-{os.getpid()}"
    tokenizer.save(str(scratch))
    scratch.replace(directory / "tokenizer.json")


def build_tokenizer(fields: Mapping[str, Any]) -> Tokenizer:
    """Raises ValueError, with the reason, for a kind that is not known."""
    kind = fields.get("tokenizer.ggml.model")
    if kind == "gpt2":
        tokenizer = _of_merges(fields)
    elif kind in ("llama", "gemma4"):
        tokenizer = _of_pieces(fields)
    else:
        raise ValueError(f"its tokenizer is of the kind {kind!r}")
    _add_tokens(tokenizer, fields)
    if _adds_bos(fields):
        id = fields["tokenizer.ggml.bos_token_id"]
        bos = fields["tokenizer.ggml.tokens"][id]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[bos, "$A"], pair=[bos, "$A", bos, "$B"], special_tokens=[(bos, id)]
        )
    return tokenizer


def _adds_bos(fields: Mapping[str, Any]) -> bool:
    """Return whether texts begin with a token of their own, as some kinds do unless it is said."""
    rule = fields.get("tokenizer.ggml.pre")
    default = fields.get("tokenizer.ggml.model") == "llama" or rule in WHOLE_WORDS_FIRST
    has_one = "tokenizer.ggml.bos_token_id" in fields
    return has_one and bool(fields.get("tokenizer.ggml.add_bos_token", default))


def _of_merges(fields: Mapping[str, Any]) -> Tokenizer:
    rule = fields.get("tokenizer.ggml.pre", "default")
    if rule not in RULES:
        raise ValueError(f"its tokenizer splits texts by the rule {rule!r}")
    vocab = {token: i for i, token in enumerate(fields["tokenizer.ggml.tokens"])}
    merges = [_halves(merge) for merge in fields["tokenizer.ggml.merges"]]
    # unk_token stays empty as in the original: bytes without a token of their own are dropped.
    tokenizer = Tokenizer(BPE(vocab, merges, ignore_merges=rule in WHOLE_WORDS_FIRST))
    steps: list[Any] = [pre_tokenizers.Split(Regex(part), "isolated") for part in RULES[rule]]
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _halves(merge: str) -> tuple[str, str]:
    # A space inside a token is written Ġ or ▁, so the one space separates the two parts.
    left, right = merge.split(" ", 1)
    return left, right


def _of_pieces(fields: Mapping[str, Any]) -> Tokenizer:
    """Return SentencePiece's kind, whose pieces have scores, or merges as Gemma 4's have."""
    tokens, given = fields["tokenizer.ggml.tokens"], fields.get("tokenizer.ggml.merges")
    vocab = {token: i for i, token in enumerate(tokens)}
    if given is None:
        pairs = _pairs(tokens, fields["tokenizer.ggml.scores"], vocab)
        merges = [pair for _, pair in sorted(pairs)]
    else:
        merges = [_halves(merge) for merge in given]
    unknown = tokens[fields.get("tokenizer.ggml.unknown_token_id", 0)]
    tokenizer = Tokenizer(BPE(vocab, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    begins_with_space = fields.get("tokenizer.ggml.add_space_prefix", given is None)
    parts: list[Any] = [normalizers.Replace(" ", _SPACE)]
    ends: list[Any] = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if begins_with_space:
        parts.insert(0, normalizers.Prepend(_SPACE))
        ends.append(decoders.Strip(" ", 1, 0))
    tokenizer.normalizer = normalizers.Sequence(parts)
    tokenizer.decoder = decoders.Sequence(ends)
    return tokenizer


def _pairs(
    tokens: Sequence[str], scores: Sequence[float], vocab: Mapping[str, int]
) -> Iterator[tuple[tuple[float, int, int], tuple[str, str]]]:
    """Yield the pairs of tokens that make a token, and their rank: SentencePiece joins the pair
    with the best score first."""
    for i, token in enumerate(tokens):
        for at in range(1, len(token)):
            left, right = token[:at], token[at:]
            if left in vocab and right in vocab:
                yield (-scores[i], i, at), (left, right)


def _add_tokens(tokenizer: Tokenizer, fields: Mapping[str, Any]) -> None:
    special, plain = list[AddedToken](), list[AddedToken]()
    types = fields["tokenizer.ggml.token_type"]
    for token, kind in zip(fields["tokenizer.ggml.tokens"], types, strict=True):
        if kind in (_CONTROL, _UNKNOWN):
            special.append(AddedToken(token, normalized=False, special=True))
        elif kind == _USER_DEFINED:
            plain.append(AddedToken(token, normalized=False))
    tokenizer.add_special_tokens(special)
    tokenizer.add_tokens(plain)


def tokenizer_config(fields: Mapping[str, Any], max_length: int) -> dict[str, Any]:
    """Return tokenizer_config.json, with the chat template. `max_length` in tokens."""
    tokens = fields["tokenizer.ggml.tokens"]
    roles = {
        name: tokens[fields[key]]
        for role, name in _HF_ROLES.items()
        if (key := f"tokenizer.ggml.{role}_token_id") in fields
    }
    template = fields.get("tokenizer.chat_template")
    return {
        "add_bos_token": _adds_bos(fields),
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_length,
        # Takes tokenizer.json as it is; the GPT-2 class would put its own split rule in place.
        "tokenizer_class": "PreTrainedTokenizerFast",
        **roles,
        **({"chat_template": template} if template else {}),
    }


def end_ids(fields: Mapping[str, Any]) -> list[int]:
    """Return the ids that end an answer, the declared one first."""
    tokens = fields["tokenizer.ggml.tokens"]
    roles = [fields.get(f"tokenizer.ggml.{role}_token_id") for role in ("eot", "eom")]
    # gpt-oss ends each part of an answer with <|end|>, and the whole with one of two others.
    named = END_TOKENS - {"<|end|>"} if _CALL in tokens else END_TOKENS
    ids = [fields["tokenizer.ggml.eos_token_id"], *(id for id in roles if id is not None)]
    return list(dict.fromkeys([*ids, *(i for i, token in enumerate(tokens) if token in named)]))
