"""Values of the file are taken strictly, as their keys declare them."""

import tomllib
from pathlib import Path

import jsonschema
import pytest

from omlx_server.settings import Settings, load
from omlx_server.settings.json_schema import json_schema
from tests.settings.reading import refusal, value_of, write


@pytest.mark.parametrize(
    ("key", "toml"),
    [
        ("server.port", '"8000"'),
        ("server.port", "true"),
        ("server.port", "8000.5"),
        ("server.port", "[8000]"),
        ("server.port", "2024-01-01"),
        ("server.port", "99999999999999999999"),
        ("server.host", "1"),
        ("server.max_body_bytes", "true"),
        ("server.max_body_bytes", "8388608.5"),
        ("server.request_timeout_seconds", "nan"),
        ("server.request_timeout_seconds", "inf"),
        ("server.request_timeout_seconds", "true"),
        ("server.request_timeout_seconds", '"1"'),
        ("server.allowed_hosts", '"localhost"'),
        ("auth.api_keys", '"key"'),
        ("auth.api_keys", "{a = 1}"),
        ("models.dirs", '"~"'),
        ("models.use_hf_cache", "1"),
        ("models.use_hf_cache", '"true"'),
        ("models.default", "false"),
        ("scheduler.max_batch_size", "inf"),
        ("scheduler.max_batch_size", "1e300"),
        ("server.port", "70000.0"),
        ("server.host", "1.0"),
        ("models.use_hf_cache", "1.0"),
        ("kv_cache.group_size", "64.5"),
        ("kv_cache.group_size", "48.0"),
        ("models.overrides", "{ m = { kv_cache = { group_size = 64.5 } } }"),
        ("models.overrides", "{ m = { kv_cache = { group_size = true } } }"),
        ("models.overrides", "{ m = 1.0 }"),
        ("logging.level", "1"),
    ],
)
def test_types_in_the_file_are_strict(key: str, toml: str, home: Path) -> None:
    section, name = key.split(".")
    path = write(home / "c.toml", f"[{section}]\n{name} = {toml}\n")
    message = refusal(path).message
    assert message.startswith(key) and ": expected " in message
    assert message.endswith(f"(file {path})")
    with pytest.raises(ValueError):
        Settings.of(tomllib.loads(path.read_text()))


WHOLE = [
    ("server.port", "8000.0", 8000),
    ("server.max_body_bytes", "8388608.0", 2**23),
    ("scheduler.max_batch_size", "8.0", 8),
    ("scheduler.prefill_chunk_tokens", "512.0", 512),
    ("cache.hot_cache_max_bytes", "-0.0", 0),
    ("memory.limit", "1e9", 10**9),
    ("cache.block_tokens", "64.0", 64),
    ("kv_cache.group_size", "64.0", 64),
]


@pytest.mark.parametrize(("key", "toml", "value"), WHOLE)
def test_a_number_without_a_fraction_is_a_whole_one(
    key: str, toml: str, value: int, home: Path
) -> None:
    section, name = key.split(".")
    path = write(home / "c.toml", f"[{section}]\n{name} = {toml}\n")
    found = load(path, {}, {})
    assert repr(value_of(found, key)) == repr(value)
    again = Settings.of(tomllib.loads(path.read_text()))
    assert getattr(getattr(again, section), name) == value
    # Editors check by the schema, which must say the same.
    schema = jsonschema.Draft202012Validator(json_schema())
    assert schema.is_valid(tomllib.loads(path.read_text()))


def test_the_same_for_a_flag_and_for_what_a_model_has_otherwise(home: Path) -> None:
    found = load(None, {"kv_cache.group_size": "32.0"}, {"OMLX_SERVER__PORT": "9000.0"}).settings
    assert repr((found.kv_cache.group_size, found.server.port)) == "(32, 9000)"
    text = """
        [models.overrides.m]
        context_length = 4096.0
        sampling = { top_k = 5.0, temperature = 1.0 }
        kv_cache = { group_size = 64.0 }
        chat_template_kwargs = { thinking_budget = 1.0 }
    """
    own = load(write(home / "c.toml", text), {}, {}).settings.models.overrides["m"]
    assert (
        repr((own.context_length, own.sampling.top_k, own.kv_cache.group_size)) == "(4096, 5, 64)"
    )
    # A template prints it, so it stays.
    assert repr((own.sampling.temperature, own.chat_template_kwargs["thinking_budget"])) == (
        "(1.0, 1.0)"
    )


def test_settings_can_not_be_changed() -> None:
    with pytest.raises(AttributeError):
        Settings().server.port = 1  # type: ignore[misc]
