"""Tokenizers of many kinds, and texts that are hard to cut for them."""

from functools import cache
from typing import Any

from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Backend

from tests.text import makers

# How families of models split a text, as their tokenizer.json says it.
SPLITS = {
    "gpt2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "llama3": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "o200k": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "words with blanks": r"\p{L}+( \p{L}+)?|\s+|[^\s\p{L}]+",
}
CORPUS = [
    *makers.CORPUS,
    'def f(x):\n    return {"a": [1, 2, 3], "b": "c d"}\n\n\nclass A:\n\tpass\n' * 2,
    "aaaa bbbb  cccc   dddd 1 22 333 4444 it's we'll\n \n  \n" * 2,
]


@cache
def backend_of(name: str) -> Backend:
    if name in makers.FAMILIES:
        backend = makers.FAMILIES[name]()
    elif name == "digits":
        backend = _trained(
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        )
    elif name == "prefix space":
        backend = _trained(pre_tokenizers.ByteLevel(add_prefix_space=True))
    elif name == "no split":
        backend = _trained(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    elif name == "swallowing words":
        backend = _trained(pre_tokenizers.ByteLevel(add_prefix_space=False))
        backend.add_tokens([AddedToken("cc", lstrip=True), AddedToken("dd", rstrip=True)])
        backend.add_tokens([AddedToken("a b"), AddedToken("x.y"), AddedToken(".\nq")])
    else:
        split = pre_tokenizers.Split(Regex(SPLITS[name]), "isolated")
        backend = _trained(split, pre_tokenizers.ByteLevel(False, use_regex=False))
        backend.normalizer = normalizers.NFC()
        backend.add_special_tokens(["<|im_start|>", "<|im_end|>"])
        backend.post_processor = processors.TemplateProcessing(
            single="<|im_start|> $A <|im_end|>",
            special_tokens=[
                (text, backend.token_to_id(text)) for text in ("<|im_start|>", "<|im_end|>")
            ],
        )
    return backend


def _trained(*splits: Any) -> Backend:
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(list(splits))
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    return backend


OTHERS = [*SPLITS, "digits", "prefix space", "no split", "swallowing words"]
NAMES = [*makers.FAMILIES, *OTHERS]
PARTS = ["a", "b", "cc", "dd", "Hello", "the", "7", "42", "2024", " ", " ", " ", "  ", "\n", ".\n"]
PARTS += ["\t", ".", ",", '"', "'s", "'", "(", "{", "<", "<|im_start|>", "[INST]", "é", "e\u0301"]
PARTS += ["Я", "мир", "한", "あ", "你好", "，", "。", "、", "“", "ع", "\u3000"]
PARTS += ["好", "😀", "▁", "<think>", "x.y", "a b", "\N{NO-BREAK SPACE}", "q", "["]
texts = st.lists(st.sampled_from(PARTS) | st.text(max_size=3), max_size=40).map("".join)

# Control tokens that are recognised in a way of their own: what an added token of that kind sets.
CONTROLLED: dict[str, dict[str, bool]] = {
    "words apart": {"single_word": True},
    "blanks on the left": {"lstrip": True},
    "blanks on the right": {"rstrip": True},
    "normalized": {"normalized": True},
    "trimmed": {"normalized": True},
}
CONTROLS = ["<|im_start|>", "<|im_end|>", "<s>", "[INST]"]
plain = st.lists(st.sampled_from([p for p in PARTS if p not in CONTROLS]), max_size=8).map("".join)
turns = st.lists(st.tuples(st.sampled_from(CONTROLS), plain), max_size=8)
conversations = st.tuples(plain, turns).map(
    lambda pair: pair[0] + "".join(f"{control}{text}" for control, text in pair[1])
)


@cache
def controlled(name: str) -> Backend:
    """A tokenizer with `<|im_start|>` as `CONTROLLED` says, and a plain `<|im_end|>`; for any other
    name that of `backend_of`."""
    if name not in CONTROLLED:
        return backend_of(name)
    backend = makers.byte_bpe()
    if name == "trimmed":
        backend.normalizer = normalizers.Strip()
    flags = {"normalized": False, **CONTROLLED[name]}
    backend.add_special_tokens([AddedToken("<|im_start|>", special=True, **flags)])
    backend.add_special_tokens([AddedToken("<|im_end|>", special=True, normalized=False)])
    return backend
