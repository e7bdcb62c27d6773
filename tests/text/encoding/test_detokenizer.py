"""One law: what comes out, joined, is the decoding of everything; never half a character."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend

from omlx_server.text.encoding.pieces import Detokenizer
from omlx_server.text.tokenizer import Tokenizer
from tests.text import makers
from tests.text.conftest import Folder, Load

bounded = settings(max_examples=150, deadline=None, derandomize=True)
families = pytest.mark.parametrize("family", [*makers.GENERATIVE, "wordpiece"])
# Small numbers hit special and byte tokens of every family.
id_lists = st.lists(st.integers(0, 40) | st.integers(100, 262) | st.integers(0, 430), max_size=24)

EMOJI = "👩‍👩‍👧 🏴‍☠️ é 你"


def streamed(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    detokenizer = Detokenizer(tokenizer.pieces)
    return [*map(detokenizer.add, ids), detokenizer.finish()]


def library_decode(folder: Folder, family: str, ids: list[int]) -> str:
    backend = Backend.from_file(str(folder(family) / "tokenizer.json"))
    return backend.decode(ids, skip_special_tokens=True)


def byte_runs_are_whole(tokenizer: Tokenizer, ids: list[int]) -> bool:
    """False where byte tokens in a row are not UTF-8: there ours keeps what is readable."""
    run = b""
    for token_id in [*(i for i in ids if tokenizer.pieces.piece(i) is not None), -1]:
        piece = tokenizer.pieces.piece(token_id) if token_id >= 0 else ""
        if isinstance(piece, bytes):
            run += piece
        elif run.decode(errors="ignore").encode() != run:
            return False
        else:
            run = b""
    return True


@families
@bounded
@given(ids=id_lists)
def test_joined_pieces_are_the_decoding(
    load: Load, folder: Folder, family: str, ids: list[int]
) -> None:
    tokenizer = load(family)
    text = "".join(streamed(tokenizer, ids))
    assert text == tokenizer.decode(ids)
    if tokenizer.pieces.byte_level or byte_runs_are_whole(tokenizer, ids):
        assert text == library_decode(folder, family, ids)


@pytest.mark.parametrize("family", makers.GENERATIVE)
@bounded
@given(text=st.text(max_size=30))
def test_texts_come_out_whole_and_never_with_half_a_character(
    load: Load, folder: Folder, family: str, text: str
) -> None:
    tokenizer = load(family)
    ids = tokenizer.encode(text, special=False)
    parts = streamed(tokenizer, ids)
    assert "".join(parts) == library_decode(folder, family, ids)
    if "\ufffd" not in text:
        assert not any("\ufffd" in part for part in parts)


@pytest.mark.parametrize("family", makers.GENERATIVE)
def test_a_character_over_several_tokens_comes_with_the_last(load: Load, family: str) -> None:
    tokenizer = load(family)
    ids = tokenizer.encode(EMOJI)
    parts = streamed(tokenizer, ids)
    assert "".join(parts) == EMOJI
    assert "" in parts[:-1]
    assert parts[-1] == ""


@pytest.mark.parametrize("family", ["llama", "byte_level"])
def test_a_cut_character_is_replaced_at_the_end(load: Load, family: str) -> None:
    tokenizer = load(family)
    ids = tokenizer.encode("a👋")[:-1]
    *parts, rest = streamed(tokenizer, ids)
    assert "".join(parts) == "a"
    assert rest == "\ufffd"


def test_a_readable_character_in_a_bad_byte_run_is_kept(load: Load) -> None:
    tokenizer = load("llama")
    run = [tokenizer.token_id(f"<0x{byte:02X}>") or 0 for byte in "é".encode() + b"\xff"]
    assert streamed(tokenizer, run) == ["", "é", "\ufffd", ""]


def test_a_cut_character_before_a_text_is_replaced(load: Load) -> None:
    tokenizer = load("llama")
    byte, hello = tokenizer.token_id("<0xF0>"), tokenizer.token_id("▁he")
    assert byte is not None
    assert hello is not None
    assert streamed(tokenizer, [byte, hello]) == ["", "\ufffd he", ""]


def test_a_first_space_as_a_byte_token_goes_too(load: Load, folder: Folder) -> None:
    tokenizer = load("llama")
    space = tokenizer.token_id("<0x20>") or 0
    assert streamed(tokenizer, [space, space]) == ["", " ", ""]
    assert library_decode(folder, "llama", [space, space]) == " "


def test_a_special_token_within_a_character_is_skipped(load: Load) -> None:
    tokenizer = load("byte_level")
    end = tokenizer.token_id("<|im_end|>")
    ids = tokenizer.encode("👋")
    assert end is not None
    assert "".join(streamed(tokenizer, [end, ids[0], end, *ids[1:], end])) == "👋"


def test_the_first_space_of_sentencepiece_goes_also_after_a_special_token(load: Load) -> None:
    tokenizer = load("llama")
    begin, hello = tokenizer.token_id("<s>"), tokenizer.token_id("▁he")
    assert begin is not None
    assert hello is not None
    assert streamed(tokenizer, [begin, hello, hello]) == ["", "he", " he", ""]


@pytest.mark.parametrize("family", ["byte_level", "llama"])
def test_the_cost_of_a_token_does_not_grow(load: Load, family: str) -> None:
    tokenizer = load(family)
    chunk = (tokenizer.encode("Hello world, what is the weather? 👋🏽") * 100)[:2000]
    detokenizer = Detokenizer(tokenizer.pieces)
    took = []
    for _ in range(10):
        start = time.thread_time()
        for token_id in chunk:
            detokenizer.add(token_id)
        took.append(time.thread_time() - start)
    assert min(took[-3:]) < 5 * min(took[:3])
    assert min(took) / len(chunk) < 50e-6
