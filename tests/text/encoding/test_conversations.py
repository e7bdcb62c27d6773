"""Conversations that grow: only their new part is encoded, and their ids are those of a whole
encoding."""

import random
import re
from array import array
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from tokenizers import Tokenizer as Backend

from omlx_server.errors import TooManyTokens
from omlx_server.models.bundled import starter
from omlx_server.models.catalogue import STARTER
from omlx_server.settings import Settings
from omlx_server.text.encoding.encoder import PIECE, Characters, KeptIds, PieceEncoder
from omlx_server.text.encoding.ordinary import OrdinaryEncoder
from omlx_server.text.encoding.pieces import Pieces
from omlx_server.text.tokenizer import Tokenizer
from tests.text.conftest import Folder
from tests.text.encoding.backends import CONTROLLED, NAMES, controlled, conversations

bounded = settings(max_examples=60, deadline=None, derandomize=True)

# A twin of a token that must stand between words is written as digits where it does not, and a
# token for unknown words is spelled out.
WHOLE = [name for name in (*NAMES, *CONTROLLED) if name not in ("words apart", "wordpiece")]
LONG = " ".join(random.Random(7).choices(("read", "the file", "def f(x):", "42", "naïve"), k=9000))


@cache
def encoder_of(name: str) -> OrdinaryEncoder:
    """What it keeps has room for some of the examples only."""
    backend = controlled(name)
    byte_level = Pieces(backend).byte_level
    return OrdinaryEncoder(backend, byte_level=byte_level, kept=KeptIds(1 << 14))


@pytest.mark.parametrize("name", WHOLE)
@bounded
@given(rendering=conversations)
def test_a_conversation_has_the_tokens_of_the_whole(name: str, rendering: str) -> None:
    expected = controlled(name).encode(rendering, add_special_tokens=False).ids
    for _ in ("encoded", "kept"):
        assert encoder_of(name).encode_rendered(rendering, lambda text: text) == expected


@pytest.fixture(scope="module")
def starter_dir() -> Path:
    return starter.ensure(STARTER, Settings().models.dirs[0], variant="f32")


def test_conversations_about_real_files_have_the_tokens_of_the_whole(starter_dir: Path) -> None:
    """With the tokenizer of the starter model: 49,152 tokens, and 17 control tokens."""
    tokenizer = Tokenizer.load(starter_dir)
    library = Backend.from_file(str(starter_dir / "tokenizer.json"))
    files = [
        path.read_text(encoding="utf-8") for path in Path(__file__).parent.parent.rglob("*.py")
    ]
    files = [re.sub(r"<\|\w+\|>", "", text) for text in files]
    chance = random.Random(3)
    for _ in range(40):
        texts = chance.choices(files, k=chance.randrange(1, 5))
        starts = [chance.randrange(len(text) + 1) for text in texts]
        cut = [text[start:][:20_000] for text, start in zip(texts, starts, strict=True)]
        rendering = "".join(f"<|im_start|>user\n{text}<|im_end|>\n" for text in cut)
        expected = library.encode(rendering, add_special_tokens=False).ids
        assert tokenizer.encode_rendered(rendering, lambda text: text) == expected
    assert tokenizer.characters.reused > 0


HOSTILE = [
    " ",
    "  ",
    "\n",
    "\r\n",
    "\t",
    "\u3000",
    "\xa0",
    "a",
    "the",
    "Q",
    "7",
    "2024",
    "'s",
    "'",
    "😀",
]
HOSTILE += [
    "e\u0301",
    "\u0301",
    "好",
    "你好",
    "，",
    "。",
    "“",
    "мир",
    "Я",
    "한",
    "あ",
    "ع",
    "अ",
    "ﬁ",
    "\u200d",
]
HOSTILE += [",", ".", ":", "(", "{", "=", "<", "<|im_end|>", "|>", "_", "ß", "ŉ", "½", "²"]


def test_hostile_texts_have_the_tokens_of_the_whole(starter_dir: Path) -> None:
    library = Backend.from_file(str(starter_dir / "tokenizer.json"))
    encoder = PieceEncoder(library, piece=7, batch=50)
    chance = random.Random(5)
    for _ in range(400):
        some = chance.sample(HOSTILE, chance.randrange(1, 9))
        text = "".join(chance.choices(some, k=chance.randrange(1, 200)))
        assert encoder.ids(text) == library.encode(text, add_special_tokens=False).ids


@pytest.fixture
def tokenizer(folder: Folder) -> Tokenizer:
    """One that has encoded nothing yet."""
    return Tokenizer.load(folder("byte_level"))


def encoded(tokenizer: Tokenizer, rendering: str, most: int | None = None) -> int:
    """The number of characters that went to the library for a rendering. Its ids must be those
    that a tokenizer gives which has kept nothing."""
    before = tokenizer.characters.encoded
    ids = tokenizer.encode_rendered(rendering, lambda text: text, most)
    assert ids == controlled("byte_level").encode(rendering, add_special_tokens=False).ids
    return tokenizer.characters.encoded - before


TWIN = 33
"""Characters by which a control token may be longer for the library than in the rendering."""


def test_of_a_second_turn_the_new_part_is_encoded(tokenizer: Tokenizer) -> None:
    first = f"<|im_start|>user\n{LONG}<|im_end|>\n"
    answer = "<|im_start|>assistant\nAll of it.<|im_end|>\n<|im_start|>user\nAnd now?<|im_end|>\n"
    assert len(LONG) > 10 * PIECE
    assert encoded(tokenizer, first) > 0
    assert encoded(tokenizer, first + answer) <= len(answer) + 4 * TWIN
    assert encoded(tokenizer, first + answer) == 0


def test_a_conversation_that_loses_its_first_turns_is_not_encoded_again(
    tokenizer: Tokenizer,
) -> None:
    turns = [f"<|im_start|>user\n{LONG[start:][:2000]}" for start in range(0, 20_000, 2000)]
    encoded(tokenizer, "".join(turns))
    assert encoded(tokenizer, "".join(turns[3:])) == 0


def test_of_a_text_that_grows_no_more_than_a_piece_is_encoded_again(tokenizer: Tokenizer) -> None:
    for start in ("", "<|im_start|>user\n"):
        encoded(tokenizer, start + LONG[:50_000])
        assert encoded(tokenizer, start + LONG[:50_500]) < 500 + PIECE + 100 + TWIN


def test_prompts_without_a_template_are_kept_too(tokenizer: Tokenizer) -> None:
    first = tokenizer.encode_prompt(LONG[:50_000])
    before = tokenizer.characters
    second = tokenizer.encode_prompt(LONG[:50_500])
    assert tokenizer.characters.encoded - before.encoded < 500 + PIECE + 100
    assert tokenizer.characters.reused - before.reused > 40_000
    library = controlled("byte_level")
    assert [first, second] == [library.encode(LONG[:n]).ids for n in (50_000, 50_500)]


def test_what_is_kept_is_bounded_by_the_most_that_is_wanted(tokenizer: Tokenizer) -> None:
    """As the rest, a text whose ids are kept may not be longer than the context."""
    rendering = f"<|im_start|>user\n{LONG}"
    count = len(tokenizer.encode_rendered(rendering, lambda text: text))
    assert encoded(tokenizer, rendering, count) == 0
    with pytest.raises(TooManyTokens) as caught:
        tokenizer.encode_rendered(rendering, lambda text: text, count - 1)
    assert caught.value.at_least == count


def test_a_control_text_of_a_client_is_no_control_token_when_it_is_kept(
    tokenizer: Tokenizer,
) -> None:
    """Both renderings show the same text; in one the template has written the token."""
    token = tokenizer.token_id("<|im_end|>")
    said = [tokenizer.encode_rendered("a@b", lambda t: t.replace("@", "<|im_end|>"))] * 2
    written = tokenizer.encode_rendered("a<|im_end|>b", lambda text: text)
    said.append(tokenizer.encode_rendered("a@b", lambda t: t.replace("@", "<|im_end|>")))
    assert written.count(token or -1) == 1 and all(token not in ids for ids in said)
    assert said[0] == said[1] == said[2] == tokenizer.encode("a<|im_end|>b", special=False)


def test_kept_ids_have_a_budget_and_the_eldest_goes_first() -> None:
    kept = KeptIds(4000)
    kept.keep("first", array("I", [1]))
    for number in range(100):
        kept.find(["first"])
        kept.keep(f"text {number}", array("I", range(20)))
        assert 0 < kept.nbytes <= 4000
    found = kept.find(["first", "text 99", "text 0"])
    assert {text: list(ids) for text, ids in found.items()} == {
        "first": [1],
        "text 99": list(range(20)),
    }


def test_a_text_that_most_others_would_go_for_is_not_kept() -> None:
    kept = KeptIds(4000)
    kept.keep("small", array("I", [1]))
    kept.keep("large", array("I", range(1000)))
    assert list(kept.find(["small", "large"])) == ["small"]
    nothing = KeptIds()
    nothing.keep("small", array("I", [1]))
    assert not nothing.find(["small"]) and nothing.nbytes == 0


def test_characters_are_counted() -> None:
    kept = KeptIds(4000)
    kept.find(["abc", "de"])
    kept.keep("abc", array("I", [1]))
    kept.find(["abc", "de"])
    assert kept.characters == Characters(encoded=7, reused=3)
