"""Texts of flags and of the environment: what they mean, and in which words they are refused."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omlx_server.errors import ConfigError
from omlx_server.settings import KEYS, layers, load
from omlx_server.settings.sections import FIELDS
from omlx_server.settings.values import plain, words_of
from tests.settings.reading import refusal, value_of, write

BAD_TEXTS = [
    ("server.port", ["", "x", "1.5", "-1", "65536", "true", "0x50", "1e3", "９", "9" * 5000]),
    ("server.host", ["", "a b", "http://x", "127.0.0.1\n"]),
    ("server.max_body_bytes", ["", "0", "1023", "2GiB", "8Mi", "-1MiB", "MiB", "1.5", "9" * 400]),
    ("server.request_timeout_seconds", ["-1", "nan", "inf", "1e9", "86401", "soon"]),
    ("server.sse_ping_seconds", ["0", "301"]),
    ("server.allowed_hosts", ["a/b", "[1]", '["a", null]', '[["a"]]', "[", "a,,b"]),
    ("auth.api_keys", ["two words", "[1]", "[", "kéy", '[""]', "[" * 20000]),
    ("models.dirs", ["", "[]", "[1]", '[""]', "[", "/m\0"]),
    ("cache.cold_dir", ["", "\0"]),
    ("models.use_hf_cache", ["", "2", "maybe", "on"]),
    ("scheduler.max_batch_size", ["0", "257"]),
    ("scheduler.max_queue", ["0", "100001"]),
    ("scheduler.prefill_chunk_tokens", ["0", "32", "100", "8256"]),
    ("scheduler.max_batched_tokens", ["0", "65537"]),
    ("scheduler.decode_share", ["-0.1", "0.91", "1", "half"]),
    ("memory.limit", ["0", "0GB", "-1GB", "most", "8Mi", "2000TiB", ""]),
    ("memory.reserve", ["-1GB", "some", ""]),
    ("memory.activation_reserve", ["-1", "AUTO"]),
    ("sampling.max_tokens", ["-1", "10000001"]),
    ("logging.level", ["", "INFO", "trace"]),
    ("logging.format", ["", "AUTO", "text"]),
    ("logging.file", ["\0", "/log\0"]),
    ("tracing.enabled", ["", "2", "maybe"]),
]


@pytest.mark.parametrize(
    ("key", "text"),
    [(key, text) for key, texts in BAD_TEXTS for text in texts],
    ids=lambda text: ascii(text[:20]),
)
def test_a_bad_text_names_key_expectation_and_origin(key: str, text: str) -> None:
    name = layers.env_name(key)
    for message, origin in (
        (refusal(overrides={key: text}).message, "flag"),
        (refusal(environ={name: text}).message, f"env {name}"),
    ):
        assert message.startswith(f"{key}: expected {words_of(FIELDS[key])}")
        assert message.endswith(f"({origin})")
        assert len(message) < 250


@given(key=st.sampled_from(KEYS), text=st.text(max_size=30))
def test_any_text_is_a_value_or_a_refusal_that_names_the_key(key: str, text: str) -> None:
    try:
        load(None, {key: text}, {})
    except ConfigError as error:
        assert key in error.message or "home directory" in error.message


def test_keys_never_appear_in_a_repr_or_a_message(home: Path) -> None:
    loaded = load(None, {"auth.api_keys": "hunter2"}, {})
    assert "hunter2" not in repr(loaded) + str(loaded) + json.dumps(
        [plain(value_of(loaded, key)) for key in KEYS]
    )
    assert loaded.settings.auth.api_keys[0].reveal() == "hunter2"
    for bad in ("hunter2 x", '["hunter2", 1]', '["hunter2"'):
        assert "hunter2" not in refusal(overrides={"auth.api_keys": bad}).message
    path = write(home / "c.toml", '[auth]\napi_keys = "hunter2"\n')
    assert "hunter2" not in refusal(path).message
    path = write(home / "c.toml", '[cache]\nremote = ["redis://:hunter2@h/0"]\n')
    assert "hunter2" not in refusal(path).message
