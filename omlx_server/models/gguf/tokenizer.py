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

# Types of tokens, as GGUF numbers them.
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)
_SPACE = "▁"

# Ends of a text or of a turn, by name: a chat model may close its answer with any of them.
END_TOKENS = frozenset(
    {"<|endoftext|>", "<|im_end|>", "<|eot_id|>", "</s>", "<end_of_turn>", "<eos>", "<|end|>"}
)

_HF_ROLES = {
    "bos": "bos_token",
    "eos": "eos_token",
    "unknown": "unk_token",
    "padding": "pad_token",
}
_WORDS_AND_DIGITS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_CASES = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]%s[\p{Ll}\p{Lm}\p{Lo}\p{M}]%s"
_BY_CASE = "|".join(
    rf"[^\r\n\p{{L}}\p{{N}}]?{_CASES % signs}%(ending)s" for signs in (("*", "+"), ("+", "*"))
)
_AFTER_CASE = r"|\p{N}%(digits)s| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
# By the name of the split rule; None is the rule of GPT-2.
_RULES: Mapping[str, str | None] = {
    **dict.fromkeys(("default", "gpt-2", "smollm", "starcoder", "refact", "command-r")),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), _WORDS_AND_DIGITS % ""),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3"), _WORDS_AND_DIGITS % "{1,3}"),
    "gpt-4o": (_BY_CASE + _AFTER_CASE) % {"ending": _ENDING, "digits": "{1,3}"},
    "tekken": (_BY_CASE + _AFTER_CASE) % {"ending": "", "digits": ""},
}
_DIGITS_ALONE = ("smollm", "starcoder", "refact", "command-r")
_WHOLE_WORDS_FIRST = ("llama-bpe", "llama3", "llama-v3", "falcon3", "tekken")


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
    elif kind == "llama":
        tokenizer = _of_scores(fields)
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
    """Return whether texts begin with a token of their own; those of SentencePiece's kind do unless
    it is said."""
    default = fields.get("tokenizer.ggml.model") == "llama"
    has_one = "tokenizer.ggml.bos_token_id" in fields
    return has_one and bool(fields.get("tokenizer.ggml.add_bos_token", default))


def _of_merges(fields: Mapping[str, Any]) -> Tokenizer:
    rule = fields.get("tokenizer.ggml.pre", "default")
    if rule not in _RULES:
        raise ValueError(f"its tokenizer splits texts by the rule {rule!r}")
    vocab = {token: i for i, token in enumerate(fields["tokenizer.ggml.tokens"])}
    # A space inside a token is written Ġ, so the one space separates the two parts.
    left_right = (merge.split(" ", 1) for merge in fields["tokenizer.ggml.merges"])
    # unk_token stays empty as in the original: bytes without a token of their own are dropped.
    merges = [(left, right) for left, right in left_right]
    tokenizer = Tokenizer(BPE(vocab, merges, ignore_merges=rule in _WHOLE_WORDS_FIRST))
    steps: list[Any] = []
    if rule in _DIGITS_ALONE:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    pattern = _RULES[rule]
    if pattern is not None:
        steps.append(pre_tokenizers.Split(Regex(pattern), "isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _of_scores(fields: Mapping[str, Any]) -> Tokenizer:
    tokens, scores = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.scores"]
    vocab = {token: i for i, token in enumerate(tokens)}
    merges = [pair for _, pair in sorted(_pairs(tokens, scores, vocab))]
    unknown = tokens[fields.get("tokenizer.ggml.unknown_token_id", 0)]
    tokenizer = Tokenizer(BPE(vocab, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    begins_with_space = fields.get("tokenizer.ggml.add_space_prefix", True)
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
    eos = fields["tokenizer.ggml.eos_token_id"]
    tokens = fields["tokenizer.ggml.tokens"]
    others = [i for i, token in enumerate(tokens) if token in END_TOKENS and i != eos]
    return [eos, *others]
