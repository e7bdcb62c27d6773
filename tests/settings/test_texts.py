"""Each key has a text in the source, and words to find it by that the text lacks."""

import re

import pytest

from omlx_server.settings import values
from omlx_server.settings.json_schema import json_schema
from omlx_server.settings.sections import FIELDS, KEYS
from omlx_server.settings.values import search_words_of, with_unit


@pytest.mark.parametrize("key", KEYS)
def test_each_key_has_a_text(key: str) -> None:
    assert re.match(r"\w", FIELDS[key].text) and not FIELDS[key].text.endswith(" ")


def test_the_lines_of_a_list_are_indented() -> None:
    lines = FIELDS["context.overflow"].text.splitlines()
    assert [line.split()[0] for line in lines if re.match(r"  \w", line)] == [
        *("error", "truncate", "rolling")
    ]


@pytest.mark.parametrize(
    ("word", "key"),
    [
        ("disk", "cache.cold_cache_max_bytes"),
        ("speed", "speculation.mode"),
        ("speed", "scheduler.max_batch_size"),
        ("context", "kv_cache.scheme"),
        ("context", "models.overrides"),
        ("quantize", "kv_cache.scheme"),
    ],
)
def test_words_that_people_search_for_find_a_key(word: str, key: str) -> None:
    assert word in f"{key} {FIELDS[key].text} {search_words_of(key)}"


@pytest.mark.parametrize(("start", "words"), values._SEARCH_WORDS.items())
def test_search_words_are_those_that_the_texts_lack(start: str, words: str) -> None:
    texts = [f"{key} {FIELDS[key].text}".lower() for key in KEYS if key.startswith(start)]
    assert texts
    for word in words.split():
        assert not all(word in text for text in texts), word


def test_the_schema_has_the_text_and_what_a_key_takes() -> None:
    port = json_schema()["$defs"]["ServerSettings"]["properties"]["port"]["description"]
    assert port.splitlines() == [FIELDS["server.port"].text, "an integer from 0 to 65535"]


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("memory.limit", 4 * 10**9, "4 GB"),
        ("memory.limit", "auto", ""),
        ("server.max_body_bytes", 32 * 2**20, "32 MiB"),
        ("server.write_timeout_seconds", 30.0, "30 s"),
        ("cache.cold_ttl_days", 1.5, "1.5 days"),
        ("sampling.max_tokens", 0, "0 tokens"),
        ("scheduler.decode_share", 0.2, ""),
        ("models.use_hf_cache", True, ""),
    ],
)
def test_a_number_is_written_with_its_unit(key: str, value: object, text: str) -> None:
    assert with_unit(key, value) == text
