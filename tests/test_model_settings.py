"""What single models have otherwise, their other names, and what is warned of."""

from collections.abc import Mapping
from typing import Any

import pytest

from omlx_server.errors import ConfigError
from omlx_server.settings import Settings, load, warnings
from omlx_server.settings.sections import ModelOverrides

TINY = ("/models/org/tiny", "org/tiny", "tiny")


def settings_with(
    overrides: Mapping[str, Any], aliases: Mapping[str, str] | None = None
) -> Settings:
    return Settings.of({"models": {"overrides": overrides, "aliases": aliases or {}}})


def warned(**flags: str) -> list[str]:
    return warnings(load(None, {key.replace("__", "."): v for key, v in flags.items()}, {}))


# --- Overrides -----------------------------------------------------------------------------------


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
            "chat_template_kwargs": {"enable_thinking": True, "date_string": "today"},
        },
        "tiny": {"ttl": 0, "sampling": {"temperature": 0.0}},
        "small": {"chat_template_kwargs": {"enable_thinking": False}},
    }
    own = settings_with(overrides, {"small": "org/tiny"}).overrides_of(TINY)
    assert (own.context_length, own.ttl, own.pin) == (100, 0, True)
    assert (own.sampling.temperature, own.sampling.top_k, own.sampling.top_p) == (0.0, 3, None)
    assert own.chat_template_kwargs == {"enable_thinking": False, "date_string": "today"}


def test_the_cache_of_a_model_is_found_by_an_alias_too() -> None:
    changed = {"small": {"kv_cache": {"scheme": "affine", "bits": 8}}}
    found = settings_with(changed, {"small": "org/tiny"})
    assert (found.kv_cache_of(TINY).scheme, found.kv_cache_of(TINY).bits) == ("affine", 8)
    assert found.kv_cache_of(("other",)).scheme == "none"


@pytest.mark.parametrize(
    "own",
    [
        {"context_length": 3},
        {"ttl": -1},
        {"sampling": {"temperature": 3}},
        {"sampling": {"top_p": 0}},
        {"sampling": {"seed": 1}},
        {"chat_template_kwargs": {"a": [1]}},
        {"max_loaded": 1},
    ],
)
def test_what_an_override_can_not_be_is_refused(own: dict[str, Any]) -> None:
    with pytest.raises((ConfigError, ValueError)):
        settings_with({"tiny": own})


# --- Aliases -------------------------------------------------------------------------------------


def test_an_alias_may_stand_for_an_alias() -> None:
    models = settings_with({}, {"a": "b", "b": "c"}).models
    assert [models.meant(name) for name in "abcd"] == ["c", "c", "c", "d"]


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


# --- Warnings ------------------------------------------------------------------------------------


def test_the_defaults_are_not_warned_of() -> None:
    assert warned() == []


@pytest.mark.parametrize(
    ("flags", "start"),
    [
        (
            {"server__uds": "/run/x.sock", "server__port": "9000", "server__host": "::1"},
            "server.uds is set, so this has no effect: server.host, server.port",
        ),
        (
            {"cache__hot_cache_only": "true", "cache__cold_dir": "/x"},
            "cache.hot_cache_only is on, so this has no effect: cache.cold_dir",
        ),
        (
            {"metrics__enabled": "false", "metrics__compat": "vllm"},
            "metrics.enabled is off, so this has no effect: metrics.compat",
        ),
        (
            {"admin__enabled": "false", "auth__admin": "key"},
            "admin.enabled is off, so this has no effect: auth.admin",
        ),
        (
            {"admin__enabled": "false", "models__autoload": "false"},
            "models.autoload and admin.enabled are both off",
        ),
        (
            {"models__aliases": '{"a": "b", "b": "c"}'},
            "models.aliases: b is itself an alias, so a stands for c",
        ),
    ],
)
def test_what_does_nothing_is_warned_of_in_one_line(flags: dict[str, str], start: str) -> None:
    [warning] = warned(**flags)
    assert warning.startswith(start) and "\n" not in warning


@pytest.mark.parametrize(
    "flags",
    [
        {"server__port": "9000"},
        {"server__uds": "/run/x.sock"},
        {"admin__enabled": "false"},
        {"models__autoload": "false"},
        {"auth__admin": "key"},
        {"models__aliases": '{"a": "c", "b": "c"}'},
    ],
)
def test_one_of_these_alone_does_something(flags: dict[str, str]) -> None:
    assert warned(**flags) == []


def test_a_host_for_others_needs_no_key_where_a_socket_is_used() -> None:
    flags = {"server.host": "0.0.0.0", "server.uds": "/run/x.sock"}
    assert load(None, flags, {}).settings.server.uds == "/run/x.sock"
    with pytest.raises(ConfigError, match="is open to other machines"):
        load(None, {"server.host": "0.0.0.0"}, {})
