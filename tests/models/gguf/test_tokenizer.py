"""The rebuilt tokenizer: recorded ids on hard text, and a plain byte-pair encoder as the oracle."""

import json
import unicodedata
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import regex
from tokenizers import Tokenizer
from transformers import AutoTokenizer

GPT2_SPLIT = regex.compile(
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
)

# Text -> ids. Looked at by eye once, and equal to the oracle below.
RECORDED: dict[str, list[int]] = json.loads(
    Path(__file__).with_name("starter_ids.json").read_text(encoding="utf-8")
)

MORE_TEXT = [
    "",
    " ",
    "a  b   c    d",
    "1a2b３c四",
    "C++ && Rust -> λx.x ≠ ∅; $x_{12}$",
    "नमस्ते दुनिया, שלום עולם, 안녕하세요",
    "\u00a0\u2003wide\u3000spaces\u200b",
    '{"key": [1, 2.50, null]}\r\n\r\n',
    "𝕳𝖊𝖑𝖑𝖔 \x04\x13 \U00050000",
]


class PlainBpe:
    """Byte-pair encoding as in the paper: merges the pair of lowest rank while there is one."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.vocab: dict[str, int] = spec["model"]["vocab"]
        self.ranks = {tuple(pair): i for i, pair in enumerate(spec["model"]["merges"])}
        self.symbols = byte_symbols()

    def encode(self, text: str) -> list[int]:
        return [i for word in self.words(text) for i in self.word(word)]

    def words(self, text: str) -> list[str]:
        """Each digit alone, then GPT-2's split of what is between."""
        pieces: list[str] = [""]
        for char in text:
            if unicodedata.category(char).startswith("N"):
                pieces += [char, ""]
            else:
                pieces[-1] += char
        return [word for piece in pieces for word in GPT2_SPLIT.findall(piece)]

    def word(self, word: str) -> list[int]:
        parts = [self.symbols[byte] for byte in word.encode()]
        # Some bytes have no token; the original drops them, and their neighbours may merge.
        parts = [part for part in parts if part in self.vocab]
        while pairs := [p for p in pairwise(parts) if p in self.ranks]:
            best = min(pairs, key=lambda pair: self.ranks[pair])
            at = next(i for i in range(len(parts)) if (parts[i], parts[i + 1]) == best)
            parts[at : at + 2] = ["".join(best)]
        return [self.vocab[part] for part in parts]


def byte_symbols() -> list[str]:
    """GPT-2's printable stand-ins: a byte is its own character, or one from U+0100 on."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in visible]
    return [chr(b) if b in visible else chr(256 + others.index(b)) for b in range(256)]


@pytest.fixture(scope="module")
def tokenizer(starter_dir: Path) -> Tokenizer:
    return Tokenizer.from_file(str(starter_dir / "tokenizer.json"))


@pytest.fixture(scope="module")
def plain(starter_dir: Path) -> PlainBpe:
    return PlainBpe(json.loads((starter_dir / "tokenizer.json").read_text(encoding="utf-8")))


@pytest.mark.parametrize(("text", "ids"), RECORDED.items())
def test_recorded_ids(tokenizer: Tokenizer, text: str, ids: list[int]) -> None:
    assert tokenizer.encode(text).ids == ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


@pytest.mark.parametrize("text", [*MORE_TEXT, *(t for t in RECORDED if "<|" not in t)])
def test_ids_equal_plain_byte_pair_encoding(
    tokenizer: Tokenizer, plain: PlainBpe, text: str
) -> None:
    assert tokenizer.encode(text).ids == plain.encode(text)


def test_bytes_without_a_token_are_dropped_as_in_the_original(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("\x04").ids == []


def test_transformers_reads_the_same_tokenizer(starter_dir: Path, tokenizer: Tokenizer) -> None:
    loaded = AutoTokenizer.from_pretrained(starter_dir)
    for text in [*MORE_TEXT, *RECORDED]:
        assert loaded.encode(text) == tokenizer.encode(text).ids
    assert (loaded.bos_token_id, loaded.eos_token_id, loaded.pad_token_id) == (1, 2, 2)
    assert loaded.unk_token_id == 0
    assert loaded.model_max_length == 8192


def test_control_tokens_are_special_and_keep_their_ids(tokenizer: Tokenizer) -> None:
    added = tokenizer.get_added_tokens_decoder()
    assert sorted(added) == list(range(17))
    assert all(token.special and not token.normalized for token in added.values())
    assert tokenizer.get_vocab_size() == 49152


def test_chat_template(starter_dir: Path) -> None:
    loaded = AutoTokenizer.from_pretrained(starter_dir)
    messages = [{"role": "user", "content": "Hi"}]
    text = loaded.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert text == (
        "<|im_start|>system\n"
        "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
