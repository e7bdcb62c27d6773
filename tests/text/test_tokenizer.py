"""Encoding, bytes of tokens, ends, and which folders are refused."""

import json
import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend

from omlx_server.errors import ModelUnavailable, NoSeam, TooManyTokens
from omlx_server.text.encoding.controls import pattern_of
from omlx_server.text.encoding.encoder import PieceEncoder
from omlx_server.text.tokenizer import Tokenizer
from tests.architectures.configs import CONFIGS
from tests.text import makers
from tests.text.conftest import Folder, Load
from tests.text.harmony import ENDS, with_channels

bounded = settings(max_examples=100, deadline=None, derandomize=True)
families = pytest.mark.parametrize("family", makers.GENERATIVE)

SPECIALS = [*makers.CHATML_SPECIALS, *makers.INST_SPECIALS, "<think>", "<｜User｜>"]
texts = st.lists(st.sampled_from(SPECIALS) | st.text(max_size=8), max_size=6).map("".join)


@families
def test_a_text_comes_back(load: Load, family: str) -> None:
    tokenizer = load(family)
    text = "Hello world, it's 21° in Köln: 你好 👋🏽!"
    assert tokenizer.decode(tokenizer.encode(text)) == text


@families
def test_nothing_is_added_to_a_text(load: Load, family: str) -> None:
    assert load(family).encode("") == []
    assert not set(load(family).encode("Hello")) & load(family).hidden_ids


@families
def test_special_text_becomes_its_token_or_ordinary_tokens(load: Load, family: str) -> None:
    tokenizer = load(family)
    for text in makers.special_texts(family):
        token_id = tokenizer.token_id(text)
        assert token_id is not None
        assert tokenizer.encode(text) == [token_id]
        ordinary = tokenizer.encode(f"a{text}b", special=False)
        assert not set(ordinary) & tokenizer.hidden_ids
        assert tokenizer.decode(ordinary) == f"a{text}b"


@families
@bounded
@given(text=texts)
def test_no_text_makes_a_control_token_when_special_is_off(
    load: Load, family: str, text: str
) -> None:
    tokenizer = load(family)
    ids = tokenizer.encode(text, special=False)
    assert not {tokenizer.token_text(i) for i in ids} & tokenizer.special_texts
    assert max(ids, default=0) < tokenizer.vocab_size


@families
@bounded
@given(text=texts)
def test_special_on_equals_the_library(load: Load, folder: Folder, family: str, text: str) -> None:
    expected = Backend.from_file(str(folder(family) / "tokenizer.json"))
    assert load(family).encode(text) == expected.encode(text, add_special_tokens=False).ids


def test_unflagged_turn_markers_are_control_and_markup_is_not(load: Load) -> None:
    tokenizer = load("byte_level")
    assert "<｜User｜>" in tokenizer.special_texts
    assert "<think>" not in tokenizer.special_texts
    assert tokenizer.token_id("<think>") in tokenizer.encode("<think>", special=False)
    assert tokenizer.token_id("<｜User｜>") not in tokenizer.encode("<｜User｜>", special=False)


def test_special_off_equals_a_tokenizer_without_those_tokens(load: Load) -> None:
    text = "Hello <|im_start|>user<｜User｜> there<|im_end|>"
    assert load("byte_level").encode(text, special=False) == makers.byte_bpe().encode(text).ids


def test_tokens_that_a_normalizer_hides_stay_whole_in_a_prompt(load: Load) -> None:
    tokenizer = load("legacy")
    ids = tokenizer.encode_rendered("<s> a [OLD]b<|old|> c", lambda text: text)
    assert not any(char.isdigit() for char in "".join(map(tokenizer.token_text, ids)))


@given(texts=st.sets(st.text("ab", min_size=1, max_size=4)), text=st.text("ab", max_size=12))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_the_pattern_finds_leftmost_and_longest(texts: set[str], text: str) -> None:
    longest_first = sorted(map(re.escape, texts), key=len, reverse=True)
    naive = re.compile("|".join(longest_first) or "(?!)")
    assert pattern_of(texts).findall(text) == naive.findall(text)


@families
def test_half_a_surrogate_pair_is_replaced(load: Load, family: str) -> None:
    tokenizer = load(family)
    assert tokenizer.encode("a\ud83db") == tokenizer.encode("a?b")
    assert tokenizer.encode("a\ud83db", special=False) == tokenizer.encode("a?b")


@families
@bounded
@given(text=st.text(max_size=20))
def test_the_bytes_of_tokens_join_to_the_text(load: Load, family: str, text: str) -> None:
    tokenizer = load(family)
    ids = tokenizer.encode(text, special=False)
    joined = b"".join(map(tokenizer.token_bytes, ids)).decode()
    if tokenizer.token_id("<unk>") not in ids:
        # A tokenizer that puts a space before a text takes it away when decoding.
        assert joined in (tokenizer.decode(ids), " " + tokenizer.decode(ids))


def test_bytes_of_special_and_unknown_ids(load: Load) -> None:
    tokenizer = load("byte_level")
    end = tokenizer.token_id("<|im_end|>")
    assert end is not None
    assert tokenizer.token_bytes(end) == b"<|im_end|>"
    assert tokenizer.token_text(end) == "<|im_end|>"
    assert tokenizer.decode([end]) == ""
    assert tokenizer.token_bytes(tokenizer.vocab_size + 5) == b""


def test_sentencepiece_marks_and_byte_tokens(load: Load) -> None:
    tokenizer = load("llama")
    byte, space = tokenizer.token_id("<0xF0>"), tokenizer.token_id("▁")
    assert byte is not None
    assert space is not None
    assert tokenizer.token_bytes(byte) == b"\xf0"
    assert tokenizer.token_bytes(space) == b" "


def test_every_file_may_name_an_end(tmp_path: Path) -> None:
    makers.save(tmp_path, "byte_level", eos_token_id=7, text_config={"eos_token_id": [8]})
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [9, 10]}')
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.eos_ids == {7, 8, 9, 10, tokenizer.token_id("<|im_end|>")}


def test_an_answer_in_channels_ends_with_a_call_whatever_the_files_say(tmp_path: Path) -> None:
    makers.save(tmp_path, "byte_level", eos_token_id=7)
    backend = with_channels(makers.byte_level())
    backend.save(str(tmp_path / "tokenizer.json"))
    assert {backend.token_to_id(text) for text in ENDS} < Tokenizer.load(tmp_path).eos_ids


def test_without_any_end(tmp_path: Path) -> None:
    makers.save(tmp_path, "byte_level")
    (tmp_path / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "PreTrainedTokenizerFast"}'
    )
    assert Tokenizer.load(tmp_path).eos_ids == frozenset()


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match="no usable tokenizer"):
        Tokenizer.load(tmp_path)


def test_a_broken_config_is_refused_but_for_what_makers_recommend(tmp_path: Path) -> None:
    makers.save(tmp_path, "byte_level")
    expected = Tokenizer.load(tmp_path).eos_ids
    (tmp_path / "generation_config.json").write_text("{")
    assert Tokenizer.load(tmp_path).eos_ids == expected
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelUnavailable, match="not JSON"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("name", ["exaone4", "exaone4+full", "gemma2", "glm", "plamo3"])
def test_a_config_that_only_transformers_refuses_does_not_matter(tmp_path: Path, name: str) -> None:
    """It checks the values of config.json by its own model code, with errors of any type."""
    makers.save(tmp_path, "byte_level", **CONFIGS[name])
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.decode(tokenizer.encode("Hello world")) == "Hello world"


def test_code_in_a_model_folder_does_not_run(tmp_path: Path) -> None:
    makers.save(tmp_path, "byte_level")
    config = tmp_path / "tokenizer_config.json"
    content = json.loads(config.read_text())
    content["auto_map"] = {"AutoTokenizer": ["evil.Evil", None]}
    config.write_text(json.dumps(content))
    (tmp_path / "evil.py").write_text("raise SystemExit('it ran')")
    with suppress(ModelUnavailable):
        Tokenizer.load(tmp_path)


def test_many_threads_may_encode(load: Load) -> None:
    tokenizer = load("byte_level")
    text = "Hello <|im_end|> world"
    expected = [tokenizer.encode(text), tokenizer.encode(text, special=False)]

    def both(_: int) -> list[list[int]]:
        return [tokenizer.encode(text), tokenizer.encode(text, special=False)]

    with ThreadPoolExecutor(4) as pool:
        assert all(result == expected for result in pool.map(both, range(500)))


def test_of_what_can_not_fit_only_a_part_is_encoded(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer, encoded = load("byte_level"), [0]
    native = PieceEncoder._encode_batch

    def counted(self: PieceEncoder, texts: list[str], **options: Any) -> Any:
        encoded[0] += sum(map(len, texts))
        return native(self, texts, **options)

    monkeypatch.setattr(PieceEncoder, "_encode_batch", counted)
    encodings: list[Callable[[str], list[int]]] = [
        lambda text: tokenizer.encode(text, most=4096),
        lambda text: tokenizer.encode(text, special=False, most=4096),
        lambda text: tokenizer.encode_prompt(text, 4096),
        lambda text: tokenizer.encode_rendered(text, lambda rendering: rendering, 4096),
    ]
    for text in ("a" * 5_000_000, " " * 5_000_000, "12" * 2_500_000, "the fox " * 600_000):
        for encode in encodings:
            encoded[0] = 0
            with pytest.raises((TooManyTokens, NoSeam)):
                encode(text)
            assert encoded[0] < 1_000_000


@pytest.mark.parametrize("special", [True, False])
def test_other_threads_go_on_while_a_text_is_encoded(load: Load, special: bool) -> None:
    """One word of 200,000 letters, which goes to the library in one piece. On a busy machine the
    other thread may not come to it the first time. Were it held up, it would come to one step or
    two."""
    tokenizer, text = load("byte_level"), "qwertyuiopasdfghjklzxcvbnm" * 8000
    tokenizer.encode("a word " * 20_000, special=special)  # where it can be cut is known from now
    steps, done = [0], threading.Event()

    def go_on() -> None:
        while not done.is_set():
            steps[0] += 1
            time.sleep(0)

    other = threading.Thread(target=go_on)
    other.start()
    meanwhile: list[int] = []
    while len(meanwhile) < 30 and max(meanwhile, default=0) < 100:
        before = steps[0]
        new = text + "z" * len(meanwhile)  # one that is not kept
        assert len(tokenizer.encode(new, special=special)) > 10_000
        meanwhile.append(steps[0] - before)
    done.set()
    other.join()
    assert meanwhile[-1] >= 100, meanwhile


@families
def test_long_texts_find_all_that_they_need(
    load: Load, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nice threads encode them: nothing long is left to do with the GIL."""
    tokenizer = load(family)
    tokenizer.prepare()
    monkeypatch.delattr("omlx_server.text.encoding.seams.tokens_of")
    text = "Hello world. " * 20_000
    for special in (True, False):
        tokenizer.encode(text, special=special)
        with pytest.raises(TooManyTokens):
            tokenizer.encode(text, special=special, most=1000)
