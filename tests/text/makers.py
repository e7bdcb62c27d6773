"""Small tokenizers of the families that models use, made here and saved as model folders."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

CORPUS = [
    "You are a helpful assistant. user system tool the quick brown fox jumps over the lazy dog.",
    "Hello world, hello there! What is the weather in Paris today? It is 21 degrees.",
    '{"name": "get_weather", "arguments": {"city": "Paris"}} import os; print("hi")',
    "Grüße aus Köln, été à la plage, naïve café. 你好，世界。 こんにちは Привет мир",
] * 4

CHATML_SPECIALS = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|end|>"]
INST_SPECIALS = ["<s>", "</s>", "[INST]", "[/INST]"]


def byte_level() -> Backend:
    """As GPT-2, Llama 3, Qwen: byte-level BPE, ChatML tokens, unflagged markup and turn markers."""
    backend = byte_bpe()
    backend.add_special_tokens(
        [AddedToken(text, normalized=False, special=True) for text in CHATML_SPECIALS]
    )
    backend.add_tokens(
        [
            AddedToken(text, normalized=False)
            for text in ["<think>", "</think>", "<｜User｜>", "  ", "café"]
        ]
    )
    return backend


def flagged() -> Backend:
    """Byte-level BPE whose tokens swallow spaces around them, or match normalised text."""
    backend = byte_bpe()
    backend.normalizer = normalizers.NFKC()
    backend.add_special_tokens(
        [
            AddedToken("<|im_start|>", normalized=False, lstrip=True, special=True),
            AddedToken("<|im_end|>", normalized=True, special=True),
            AddedToken("<|endoftext|>", normalized=False, special=True),
            AddedToken("<|end|>", normalized=False, rstrip=True, special=True),
        ]
    )
    return backend


def byte_bpe() -> Backend:
    """Without any added token."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    return backend


def llama() -> Backend:
    """As Llama 2: a space before the text, byte fallback, the decoder strips the first space."""
    backend = _sentencepiece_bpe()
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    _add_inst(backend)
    return backend


def legacy() -> Backend:
    """Llama 2 with tokens that want normalised text, which the added space then hides."""
    backend = llama()
    backend.add_special_tokens(
        [AddedToken(text, normalized=True, special=True) for text in ["<|old|>", "[OLD]"]]
    )
    return backend


def metaspace() -> Backend:
    """As the later Mistrals: Metaspace puts a space before the first piece of a text only."""
    backend = _sentencepiece_bpe()
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    _add_inst(backend)
    return backend


def _sentencepiece_bpe() -> Backend:
    trained = Backend(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    trained.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=300, show_progress=False))
    model = json.loads(trained.to_str())["model"]
    vocab = {piece: i for i, piece in enumerate(_first_pieces())}
    for piece in model["vocab"]:
        vocab.setdefault(piece, len(vocab))
    merges = [tuple(pair) for pair in model["merges"]]
    backend = Backend(
        models.BPE(vocab, merges, byte_fallback=True, unk_token="<unk>", fuse_unk=True)
    )
    backend.decoder = _sentencepiece_decoder()
    return backend


def unigram() -> Backend:
    """As T5 and XLM-R, with byte fallback: control tokens are pieces of the model's vocabulary."""
    words = json.loads(_sentencepiece_bpe().to_str())["model"]["vocab"]
    known = [*_first_pieces(), *(word for word in words if word not in _first_pieces())]
    known += [char for char in "<>/s|[]INST" if char not in known]
    pieces = [
        (piece, 0.0 if i < len(_first_pieces()) else -8.0 + len(piece) / 10 - i / 10_000)
        for i, piece in enumerate(known)
    ]
    backend = Backend(models.Unigram(pieces, 0, True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = _sentencepiece_decoder()
    _add_inst(backend)
    return backend


def wordpiece() -> Backend:
    """As BERT: joins words by spaces when decoding."""
    backend = Backend(models.WordPiece(unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.decoder = decoders.WordPiece(cleanup=False)
    trainer = trainers.WordPieceTrainer(
        vocab_size=200, show_progress=False, special_tokens=["[UNK]", "[CLS]"]
    )
    backend.train_from_iterator(CORPUS, trainer)
    return backend


def _first_pieces() -> list[str]:
    return ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]


def _sentencepiece_decoder() -> decoders.Decoder:
    return decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )


def _add_inst(backend: Backend) -> None:
    backend.add_special_tokens(
        [AddedToken(text, normalized=False, special=True) for text in ["<unk>", *INST_SPECIALS]]
    )
    backend.add_tokens([AddedToken("<think>", normalized=False)])


FAMILIES: dict[str, Callable[[], Backend]] = {
    "byte_level": byte_level,
    "flagged": flagged,
    "llama": llama,
    "legacy": legacy,
    "metaspace": metaspace,
    "unigram": unigram,
    "wordpiece": wordpiece,
}
GENERATIVE = ["byte_level", "flagged", "llama", "metaspace", "unigram"]


@cache
def _described(family: str) -> str:
    return FAMILIES[family]().to_str()


def special_texts(family: str) -> list[str]:
    if family == "wordpiece":
        return ["[CLS]"]
    return CHATML_SPECIALS if family in ("byte_level", "flagged") else INST_SPECIALS


def save(folder: Path, family: str, chat_template: Any = None, **config: Any) -> Path:
    """A model folder with the family's tokenizer. `config` goes to config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(_described(family), encoding="utf-8")
    specials = special_texts(family)
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": specials[0],
        "eos_token": specials[1] if len(specials) > 1 else specials[0],
        "clean_up_tokenization_spaces": False,
    }
    if chat_template is not None:
        settings["chat_template"] = chat_template
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    if config:
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder
