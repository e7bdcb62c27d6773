"""Inputs of embedding and reranking models are what the tokenizer's own library makes of them."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import processors

from omlx_server.errors import ModelUnavailable, TooManyTokens
from omlx_server.text.encoding.ordinary import OrdinaryEncoder
from omlx_server.text.ranking.pairs import InputEncoder
from tests.text import makers
from tests.text.ranking.tokenizers import bert

LIMIT = 1 << 20
TEXTS = [
    "",
    "hello",
    "Hello world, what is the weather?",
    "Grüße 你好 🚀",
    "the quick brown fox " * 9,
]


def xlm_roberta() -> Backend:
    """<s> a </s>, and <s> a </s></s> b </s>; both are pieces of the vocabulary too."""
    backend = makers.unigram()
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[(text, backend.get_vocab()[text]) for text in ("<s>", "</s>")],
    )
    return backend


def qwen3() -> Backend:
    """Nothing before a text, one token after it."""
    backend = makers.byte_level()
    end = ("<|endoftext|>", backend.token_to_id("<|endoftext|>"))
    backend.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(
                single="$A <|endoftext|>", pair="$A $B:1 <|endoftext|>:1", special_tokens=[end]
            ),
        ]
    )
    return backend


FAMILIES: dict[str, Callable[[], Backend]] = {
    "bert": bert,
    "xlm_roberta": xlm_roberta,
    "qwen3": qwen3,
    "bare": makers.byte_level,
}


@pytest.fixture(scope="module", params=FAMILIES)
def both(request: pytest.FixtureRequest) -> tuple[InputEncoder, Backend]:
    """Ours, and the library's tokenizer as the oracle."""
    backend = FAMILIES[request.param]()
    encoder = InputEncoder(backend)
    backend.no_padding()
    backend.no_truncation()
    return encoder, backend


@pytest.mark.parametrize("limit", [None, 3, 4, 7, 20])
def test_single_texts(both: tuple[InputEncoder, Backend], limit: int | None) -> None:
    encoder, backend = both
    if limit is not None:
        backend.enable_truncation(limit)
    for text in TEXTS:
        expected = backend.encode(text)
        ours = encoder.encode(text, limit or LIMIT)
        assert list(ours.ids) == expected.ids
        assert list(ours.types) == expected.type_ids


@settings(derandomize=True, max_examples=60, deadline=None)
@given(st.sampled_from(TEXTS), st.sampled_from(TEXTS), st.none() | st.integers(6, 40))
def test_pairs(
    both: tuple[InputEncoder, Backend], query: str, document: str, limit: int | None
) -> None:
    encoder, backend = both
    backend.no_truncation()
    if limit is not None:
        backend.enable_truncation(limit, strategy="longest_first")
    expected = backend.encode(query, document)
    [ours] = encoder.encode_pairs(query, [document], limit or LIMIT)
    assert list(ours.ids) == expected.ids
    assert list(ours.types) == expected.type_ids


def test_a_query_is_encoded_once_for_all_documents(
    both: tuple[InputEncoder, Backend], monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder, encoded = both[0], []
    expected = [encoder.encode_pairs("a query", [text], 20)[0] for text in TEXTS]
    plain = OrdinaryEncoder.encode

    def noted(self: OrdinaryEncoder, text: str, most: int | None = None) -> list[int]:
        encoded.append(text)
        return plain(self, text, most)

    monkeypatch.setattr(OrdinaryEncoder, "encode", noted)
    assert encoder.encode_pairs("a query", TEXTS, 20) == expected
    assert encoded == ["a query", *TEXTS]


def test_a_whole_input_is_not_encoded_past_what_a_model_reads(
    both: tuple[InputEncoder, Backend],
) -> None:
    encoder = both[0]
    size = len(encoder.encode("some words", LIMIT))
    assert encoder.encode_whole("some words", size) == encoder.encode("some words", LIMIT)
    for text, most in (("some words", size - 1), ("some words " * 50_000, 512)):
        with pytest.raises(TooManyTokens):
            encoder.encode_whole(text, most)


def test_a_text_can_not_hold_special_tokens(both: tuple[InputEncoder, Backend]) -> None:
    encoder, backend = both
    special = {
        token_id
        for token_id, token in backend.get_added_tokens_decoder().items()
        if token.special and token.content not in ("[UNK]", "<unk>")
    }
    frame = encoder.encode("", LIMIT).ids
    for text in ("[SEP] b", "a </s> b", "a</s></s>b", "<|endoftext|>", "[CLS][SEP]"):
        ours = encoder.encode(text, LIMIT)
        assert [i for i in ours.ids if i in special] == [i for i in frame if i in special]


def test_unknown_words_stay_one_token() -> None:
    backend = bert()
    unknown = backend.get_vocab()["[UNK]"]
    assert list(InputEncoder(backend).encode("你好 🚀", LIMIT).ids).count(unknown) >= 1


def test_a_limit_below_the_special_tokens_leaves_these() -> None:
    encoder = InputEncoder(bert())
    assert encoder.encode("hello", 1) == encoder.encode("", LIMIT)
    assert encoder.encode_pairs("hello", ["world"], 1) == encoder.encode_pairs("", [""], LIMIT)


def test_half_a_surrogate_pair() -> None:
    encoder = InputEncoder(qwen3())
    assert encoder.encode("a\ud800", LIMIT) == encoder.encode("a?", LIMIT)


def test_loaded_from_a_directory(tmp_path: Path) -> None:
    backend = bert()
    (tmp_path / "tokenizer.json").write_text(backend.to_str(), encoding="utf-8")
    loaded, made = InputEncoder.load(tmp_path), InputEncoder(backend)
    pair = "hello", ["world"], LIMIT
    assert loaded.encode_pairs(*pair) == made.encode_pairs(*pair)


@pytest.mark.parametrize("content", [None, b"{", b"{}", b"\xff", json.dumps({"model": 3}).encode()])
def test_a_damaged_tokenizer(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(ModelUnavailable, match=r"tokenizer\.json"):
        InputEncoder.load(tmp_path)
