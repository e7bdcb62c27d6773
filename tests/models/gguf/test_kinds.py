"""Tokenizers of every kind that GGUF files have, beside plain programs that do the same."""

import json
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tokenizers.pre_tokenizers import ByteLevel

from omlx_server.models.gguf.split_rules import RULES
from omlx_server.models.gguf.tokenizer import build_tokenizer, end_ids

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


def test_pieces_are_joined_by_their_merges() -> None:
    """Gemma 4's kind: no space is put before a text."""
    fields = scored(prefix=False) | {"tokenizer.ggml.model": "gemma4"}
    fields |= {"tokenizer.ggml.merges": ["l l", "ll o", "h e", "he llo", "\u2581 hello"]}
    del fields["tokenizer.ggml.scores"], fields["tokenizer.ggml.add_space_prefix"]
    tokenizer = build_tokenizer(fields)
    tokens = tokenizer.encode("hello hello hell\u65e5", add_special_tokens=False).tokens
    assert tokens == ["hello", "\u2581hello", "\u2581", "he", "ll", "<0xE6>", "<0x97>", "<0xA5>"]


def test_a_token_of_the_user_is_found_in_a_text() -> None:
    tokenizer = build_tokenizer(scored(prefix=False))
    ids = tokenizer.encode("ab<turn>ab", add_special_tokens=False).ids
    assert [tokenizer.id_to_token(id) for id in ids] == ["ab", "<turn>", "ab"]


def test_a_text_begins_with_its_token_where_the_file_says_so() -> None:
    fields = {**scored(prefix=False), "tokenizer.ggml.bos_token_id": 1}
    assert build_tokenizer(fields).encode("ab").ids[0] == 1
    without = build_tokenizer({**fields, "tokenizer.ggml.add_bos_token": False})
    assert without.encode("ab").ids == build_tokenizer(fields).encode("ab").ids[1:]


# Rules -> texts -> the pieces that llama.cpp splits them into.
SPLITS: dict[str, dict[str, list[str]]] = json.loads(
    Path(__file__).with_name("splits.json").read_text(encoding="utf-8")
)


def merged(rule: str) -> dict[str, Any]:
    tokens = sorted(ByteLevel.alphabet())
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": rule,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": [],
        "tokenizer.ggml.token_type": [1] * len(tokens),
    }


@pytest.mark.parametrize("rules", SPLITS)
def test_texts_are_split_as_llama_cpp_splits_them(rules: str) -> None:
    for rule in rules.split():
        tokenizer = build_tokenizer(merged(rule))
        assert tokenizer.pre_tokenizer is not None
        for text, pieces in SPLITS[rules].items():
            spans = [span for _, span in tokenizer.pre_tokenizer.pre_tokenize_str(text)]
            assert [text[a:b] for a, b in spans] == pieces
            assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_each_rule_is_recorded() -> None:
    assert sorted(rule for rules in SPLITS for rule in rules.split()) == sorted(RULES)


def ends(tokens: list[str], **roles: int) -> list[str]:
    fields = {f"tokenizer.ggml.{role}_token_id": id for role, id in roles.items()}
    return [tokens[id] for id in end_ids({**fields, "tokenizer.ggml.tokens": tokens})]


def test_an_answer_ends_with_any_token_that_ends_a_turn() -> None:
    assert ends(["a", "<|user|>", "</s>"], eos=2, eot=1) == ["</s>", "<|user|>"]
    assert ends(["<|end|>", "<|endoftext|>"], eos=1) == ["<|endoftext|>", "<|end|>"]


def test_a_part_of_an_answer_of_gpt_oss_is_no_end() -> None:
    assert ends(["<|end|>", "<|return|>", "<|call|>"], eos=1) == ["<|return|>", "<|call|>"]


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
