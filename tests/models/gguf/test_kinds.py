"""Tokenizers of every kind that GGUF files have, beside plain programs that do the same."""

import random
from itertools import pairwise
from typing import Any

import pytest
import regex
from tokenizers.pre_tokenizers import ByteLevel

from omlx_server.models.gguf.tokenizer import build_tokenizer

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
PIECES = [
    *"abcdeh lo▁.",
    "▁a",
    "ab",
    "▁ab",
    "abc",
    "lo",
    "llo",
    "hello",
    "▁hello",
    "he",
    "ll",
    "▁▁",
]
TEXTS = ["", " ", "hello", " hello  hello", "abcabc ab c", "héllo ▁x", "日本 a\n\nb\x00", "hell"]


def scored(*, prefix: bool) -> dict[str, Any]:
    """SentencePiece's kind: later pieces are worse."""
    tokens = ["<unk>", "<s>", "</s>", *BYTES, *dict.fromkeys(PIECES), "<turn>"]
    types = [2, 3, 3, *[6] * 256, *[1] * (len(tokens) - 260), 4]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [-float(i) for i in range(len(tokens))],
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.add_space_prefix": prefix,
        "tokenizer.ggml.unknown_token_id": 0,
    }


def joined(text: str, vocab: dict[str, int]) -> list[int]:
    """Join the pair that makes the best piece, the first of these, while there is one."""
    parts = list(text.replace(" ", "▁"))
    while True:
        pairs = [vocab.get(a + b, 1 << 30) for a, b in pairwise(parts)]
        if not pairs or (best := min(pairs)) == 1 << 30:
            break
        at = pairs.index(best)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return [id for part in parts for id in ids_of(part, vocab)]


def ids_of(part: str, vocab: dict[str, int]) -> list[int]:
    return [vocab[part]] if part in vocab else [vocab[BYTES[byte]] for byte in part.encode()]


@pytest.mark.parametrize("prefix", [False, True])
def test_pieces_are_joined_by_their_scores(prefix: bool) -> None:
    fields = scored(prefix=prefix)
    tokenizer = build_tokenizer(fields)
    vocab = {token: id for id, token in enumerate(fields["tokenizer.ggml.tokens"])}
    chance = random.Random(1)
    texts = [*TEXTS, *("".join(chance.choices("abchelo  .é日", k=20)) for _ in range(200))]
    for text in texts:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert ids == joined(" " + text if prefix and text else text, vocab)
        assert tokenizer.decode(ids) == text.replace("▁", " ")


def test_a_token_of_the_user_is_found_in_a_text() -> None:
    tokenizer = build_tokenizer(scored(prefix=False))
    ids = tokenizer.encode("ab<turn>ab", add_special_tokens=False).ids
    assert [tokenizer.id_to_token(id) for id in ids] == ["ab", "<turn>", "ab"]


def test_a_text_begins_with_its_token_where_the_file_says_so() -> None:
    fields = {**scored(prefix=False), "tokenizer.ggml.bos_token_id": 1}
    assert build_tokenizer(fields).encode("ab").ids[0] == 1
    without = build_tokenizer({**fields, "tokenizer.ggml.add_bos_token": False})
    assert without.encode("ab").ids == build_tokenizer(fields).encode("ab").ids[1:]


WORDS_AND_DIGITS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
GPT_2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LOWER, UPPER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]", r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
ENDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
BY_CASE = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+%s|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*%s|\p{{N}}%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
RULES = {
    "gpt-4o": BY_CASE % (ENDS, ENDS, "{1,3}"),
    "tekken": BY_CASE % ("", "", ""),
    "qwen2": WORDS_AND_DIGITS % "",
    "llama-bpe": WORDS_AND_DIGITS % "{1,3}",
    "gpt-2": GPT_2,
    "default": GPT_2,
}
SPLIT = [
    "I'LL say it's 1234567 times:\n\n  def f(x):\r\n\treturn x+1",
    "日本語 and é  trailing   ",
    "a.b,c!?\n\n\n x",
]


def merged(rule: str) -> dict[str, Any]:
    tokens = sorted(ByteLevel.alphabet())
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": rule,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": [],
        "tokenizer.ggml.token_type": [1] * len(tokens),
    }


@pytest.mark.parametrize("rule", RULES)
def test_texts_are_split_by_the_named_rule(rule: str) -> None:
    tokenizer = build_tokenizer(merged(rule))
    assert tokenizer.pre_tokenizer is not None
    for text in SPLIT:
        spans = [span for _, span in tokenizer.pre_tokenizer.pre_tokenize_str(text)]
        assert [text[a:b] for a, b in spans] == regex.findall(RULES[rule], text)
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"tokenizer.ggml.model": "t5"}, "of the kind 't5'"),
        ({}, "of the kind None"),
        (merged("bloom"), "by the rule 'bloom'"),
    ],
)
def test_other_kinds_are_refused_by_name(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        build_tokenizer(fields)
