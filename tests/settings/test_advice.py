"""What is allowed and does nothing is warned of."""

from pathlib import Path

import pytest

from omlx_server.settings import Settings, load, warnings
from omlx_server.settings.advice import sources_in_words, unknown_models
from tests.settings.reading import write


def warned(**flags: str) -> list[str]:
    return warnings(load(None, {key.replace("__", "."): v for key, v in flags.items()}, {}))


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
        (
            {"speculation__mode": "ngram", "speculation__draft_model": "small"},
            "speculation.mode is ngram, so this has no effect: speculation.draft_model",
        ),
        (
            {"speculation__mode": "draft"},
            "speculation.mode is draft, but there is no speculation.draft_model",
        ),
        (
            {"models__overrides": '{"a": {"speculation": {"mode": "draft"}}, "b": {"ttl": 5}}'},
            "models.overrides.a.speculation.mode is draft, but there is no models.overrides.a.spec",
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
        {"speculation__mode": "draft", "speculation__draft_model": "small"},
        {"models__overrides": '{"a": {"speculation": {"mode": "draft", "draft_model": "b"}}}'},
    ],
)
def test_one_of_these_alone_does_something(flags: dict[str, str]) -> None:
    assert warned(**flags) == []


def test_names_that_nobody_knows() -> None:
    said = {
        "aliases": {"a": "here", "b": "a", "c": "gone", "d": "c"},
        "overrides": {"here": {}, "b": {}, "c": {}, "typo": {}},
        "pinned": ["here", "a", "d", "away"],
    }
    models = Settings.of({"models": said}).models
    assert list(unknown_models(models, {"here", "other"})) == [
        "models.aliases: c stands for gone, which is not here",
        "models.aliases: d stands for gone, which is not here",
        "models.overrides: typo is not here",
        "models.pinned: away is not here",
    ]


def test_the_sources_of_settings_are_named_with_what_wins(home: Path) -> None:
    assert sources_in_words(load(None, {}, {})) == "no config file; defaults for all else"
    file = write(home / "c.toml", "[server]\nport = 1\n")
    loaded = load(file, {"memory.limit": "3GB"}, {"OMLX_SERVER__PORT": "2"})
    assert sources_in_words(loaded) == (
        f"config file {file}; flags: memory.limit; environment: OMLX_SERVER__PORT; "
        "defaults for all else"
    )
