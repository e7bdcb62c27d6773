"""Rules over several keys, the example file, and what single models have otherwise."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from omlx_server.errors import ConfigError
from omlx_server.settings import KEYS, Settings, load
from omlx_server.settings.overrides import ModelOverrides, explicit_values
from tests.settings.reading import refusal, write

EXAMPLE = Path(__file__).parents[2] / "config" / "omlx.example.toml"
TINY = ("/models/org/tiny", "org/tiny", "tiny")


def settings_with(
    overrides: Mapping[str, Any], aliases: Mapping[str, str] | None = None
) -> Settings:
    return Settings.of({"models": {"overrides": overrides, "aliases": aliases or {}}})


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost", "LOCALHOST"])
def test_loopback_needs_no_key(host: str) -> None:
    assert load(None, {"server.host": host}, {}).settings.server.host == host


@pytest.mark.parametrize(
    "host",
    ["0.0.0.0", "::", "192.168.1.5", "::ffff:0.0.0.0", "example.org", "0", "localhost.evil.org"],
)
def test_another_host_refuses_to_start_without_a_key(host: str, home: Path) -> None:
    error = refusal(overrides={"server.host": host})
    assert host in error.message
    assert "auth.api_keys" in error.message
    assert error.hint.startswith("`omlx-server config set auth.api_keys -` asks for a key of your ")
    refusal(overrides={"server.host": host, "auth.api_keys": ""})
    refusal(write(home / "c.toml", f'[server]\nhost = "{host}"\n'))
    with pytest.raises(ConfigError):
        Settings.of({"server": {"host": host}})
    load(None, {"server.host": host, "auth.api_keys": "key"}, {})


def test_a_host_for_others_needs_no_key_where_a_socket_is_used() -> None:
    flags = {"server.host": "0.0.0.0", "server.uds": "/run/x.sock"}
    assert load(None, flags, {}).settings.server.uds == "/run/x.sock"
    with pytest.raises(ConfigError, match="is open to other machines"):
        load(None, {"server.host": "0.0.0.0"}, {})


def test_a_chunk_size_is_a_number_or_left_to_the_device() -> None:
    assert load(None, {}, {}).settings.scheduler.prefill_chunk_tokens == "auto"
    chosen = load(None, {"scheduler.prefill_chunk_tokens": " 1024 "}, {}).settings.scheduler
    assert chosen.prefill_chunk_tokens == 1024
    again = load(None, {"scheduler.prefill_chunk_tokens": "auto"}, {}).settings.scheduler
    assert again.prefill_chunk_tokens == "auto"


def test_a_step_must_hold_a_chunk_and_every_row() -> None:
    error = refusal(overrides={"scheduler.prefill_chunk_tokens": "4096"})
    assert "max_batched_tokens (2048)" in error.message
    refusal(
        overrides={"scheduler.max_batched_tokens": "448", "scheduler.prefill_chunk_tokens": "512"}
    )
    narrow = {"scheduler.max_batched_tokens": "64", "scheduler.prefill_chunk_tokens": "64"}
    refusal(overrides=narrow | {"scheduler.max_batch_size": "65"})
    load(None, narrow | {"scheduler.max_batch_size": "64"}, {})


def test_the_example_has_every_key_with_its_default_and_no_other() -> None:
    table = tomllib.loads(EXAMPLE.read_text())
    listed = [f"{section}.{key}" for section in table for key in table[section]]
    assert listed == list(KEYS)
    loaded = load(EXAMPLE, {}, {})
    assert loaded.settings == Settings()
    assert set(loaded.origins.values()) == {f"file {EXAMPLE}"}


@pytest.mark.parametrize("name", [*TINY, "small", "least"])
def test_any_name_of_a_model_and_any_alias_may_have_them(name: str) -> None:
    aliases = {"small": "tiny", "least": "small", "other": "org/other"}
    found = settings_with({name: {"context_length": 100}}, aliases)
    assert found.overrides_of(TINY).context_length == 100
    assert found.overrides_of(("org/other",)) == ModelOverrides()


def test_an_alias_of_another_model_is_none_of_its_names() -> None:
    found = settings_with({"other": {"pin": True}}, {"other": "org/other"})
    assert not found.overrides_of(TINY).pin
    assert found.overrides_of(("org/other",)).pin


def test_what_several_names_have_is_merged_key_by_key() -> None:
    overrides = {
        "org/tiny": {
            "context_length": 100,
            "ttl": 5,
            "pin": True,
            "sampling": {"temperature": 0.5, "top_k": 3},
            "presets": {"coder": {"seed": 1, "top_k": 2}, "other": {}},
            "chat_template_kwargs": {"enable_thinking": True, "date_string": "today"},
        },
        "tiny": {"ttl": 0, "sampling": {"temperature": 0.0}, "presets": {"coder": {"seed": 2}}},
        "small": {"chat_template_kwargs": {"enable_thinking": False}},
    }
    own = settings_with(overrides, {"small": "org/tiny"}).overrides_of(TINY)
    assert (own.context_length, own.ttl, own.pin) == (100, 0, True)
    assert (own.sampling.temperature, own.sampling.top_k, own.sampling.top_p) == (0.0, 3, None)
    assert own.chat_template_kwargs == {"enable_thinking": False, "date_string": "today"}
    assert list(own.presets) == ["coder", "other"]
    assert explicit_values(own.presets["coder"]) == {"seed": 2, "top_k": 2}


@pytest.mark.parametrize(
    "own",
    [
        {"context_length": 3},
        {"ttl": -1},
        {"sampling": {"temperature": 3}},
        {"sampling": {"top_p": 0}},
        {"sampling": {"n": 1}},
        {"chat_template_kwargs": {"a": [1]}},
        {"max_loaded": 1},
    ],
)
def test_what_an_override_can_not_be_is_refused(own: dict[str, Any]) -> None:
    with pytest.raises((ConfigError, ValueError)):
        settings_with({"tiny": own})


def test_an_alias_may_stand_for_an_alias() -> None:
    models = settings_with({}, {"a": "b", "b": "c"}).models
    assert [models.resolve_alias(name) for name in "abcd"] == ["c", "c", "c", "d"]


@pytest.mark.parametrize(
    ("aliases", "ring"),
    [
        ('{"a": "a"}', "a -> a"),
        ('{"a": "b", "b": "a"}', "a -> b -> a"),
        ('{"x": "a", "a": "b", "b": "c", "c": "a"}', "x -> a -> b -> c -> a"),
    ],
)
def test_a_ring_of_aliases_is_an_error(aliases: str, ring: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(None, {"models.aliases": aliases}, {})
    assert caught.value.message == f"models.aliases lead round in a ring: {ring}"


def test_the_cache_of_a_model_is_found_by_an_alias_too() -> None:
    changed = {"small": {"kv_cache": {"scheme": "affine", "bits": 8}}}
    found = settings_with(changed, {"small": "org/tiny"})
    assert (found.kv_cache_of(TINY).scheme, found.kv_cache_of(TINY).bits) == ("affine", 8)
    assert found.kv_cache_of(("other",)).scheme == "none"


def test_a_model_has_what_its_override_says_and_the_rest_from_the_section(home: Path) -> None:
    text = """
        [kv_cache]
        scheme = "affine"
        bits = 8
        [models.overrides."org/a".kv_cache]
        scheme = "turboquant"
        bits = 3.5
        [models.overrides.b.kv_cache]
        group_size = 32
    """
    found = load(write(home / "c.toml", text), {}, {}).settings
    shapes = {
        name: (kv.scheme, kv.bits, kv.group_size)
        for name in ("org/a", "b", "c")
        for kv in [found.kv_cache_of(["starter", name])]
    }
    assert shapes == {
        "org/a": ("turboquant", 3.5, 64),
        "b": ("affine", 8, 32),
        "c": ("affine", 8, 64),
    }


def test_a_flag_that_does_not_go_with_an_override_names_the_model(home: Path) -> None:
    path = write(home / "c.toml", '[models.overrides.m.kv_cache]\nscheme="turboquant"\nbits=2.5\n')
    refused = refusal(path, {"kv_cache.scheme": "affine"})
    assert refused.message.startswith(
        "models.overrides of m: kv_cache.scheme affine can't have 2.5"
    )


def test_a_flag_wins_over_an_override(home: Path) -> None:
    text = '[models.overrides.a.kv_cache]\nscheme = "turboquant"\nbits = 3.5\n'
    path = write(home / "c.toml", text)
    kv = load(path, {"kv_cache.bits": "8"}, {}).settings.kv_cache_of(["a"])
    assert (kv.scheme, kv.bits) == ("turboquant", 8)
    kv = load(path, {"kv_cache.scheme": "none"}, {}).settings.kv_cache_of(["a"])
    assert kv.scheme == "none"


DRAFTS = """
    [speculation]
    mode = "draft"
    draft_model = "small"
    [models.overrides."org/a".speculation]
    mode = "ngram"
    [models.overrides.b.speculation]
    draft_model = ""
    [models.overrides.c.speculation]
    draft_model = "other"
"""


def drafts_by(path: Path, flags: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    found = load(path, flags, {}).settings
    each = {name: found.speculation_of([name, "starter"]) for name in ("org/a", "b", "c", "d")}
    return {name: (drafts.mode, drafts.draft_model) for name, drafts in each.items()}


def test_a_model_drafts_as_its_override_says_and_the_rest_is_from_the_section(home: Path) -> None:
    assert drafts_by(write(home / "c.toml", DRAFTS), {}) == {
        "org/a": ("ngram", "small"),
        "b": ("draft", ""),
        "c": ("draft", "other"),
        "d": ("draft", "small"),
    }


def test_a_flag_for_drafts_counts_for_every_model(home: Path) -> None:
    path = write(home / "c.toml", DRAFTS)
    by_model = drafts_by(path, {"speculation.draft_model": "tiny"})
    assert by_model == {
        name: (mode, "tiny") for name, mode in zip(by_model, ("ngram", *["draft"] * 3), strict=True)
    }
    by_mode = drafts_by(path, {"speculation.mode": "auto", "kv_cache.bits": "8"})
    assert [mode for mode, _ in by_mode.values()] == ["auto"] * 4
    assert [model for _, model in by_mode.values()] == ["small", "", "other", "small"]


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"speculation.mode": "on"}, "expected one of off, auto, ngram, draft, heads, not"),
        (
            {"models.overrides": '{"a": {"speculation": {"mode": "on"}}}'},
            "models.overrides.a.speculation.mode: expected one of off, auto, ngram, draft, heads",
        ),
        (
            {"models.overrides": '{"a": {"speculation": {"depth": 3}}}'},
            "unknown key models.overrides.a.speculation.depth",
        ),
    ],
)
def test_speculation_that_can_not_be(overrides: dict[str, str], words: str) -> None:
    assert words in refusal(overrides=overrides).message


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"kv_cache.scheme": "affine", "kv_cache.bits": "3.5"}, "affine can't have 3.5 bits"),
        ({"kv_cache.scheme": "turboquant", "kv_cache.bits": "6"}, "turboquant can't have 6 bits"),
        ({"kv_cache.group_size": "48"}, "expected 32, 64 or 128"),
        ({"kv_cache.scheme": "int4"}, "one of none, affine, rotated, turboquant"),
        ({"models.overrides": '{"a": {"kv_cache": {"scheme": "affine", "bits": 5}}}'}, "5 bits"),
        ({"models.overrides": '{"a": {"kv_cash": {}}}'}, "unknown key models.overrides.a.kv_cash"),
        ({"models.overrides": "affine"}, "expected tables by model name"),
    ],
)
def test_a_kv_cache_that_can_not_be(overrides: dict[str, str], words: str) -> None:
    assert words in refusal(overrides=overrides).message
