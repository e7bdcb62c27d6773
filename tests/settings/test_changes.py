"""What a changed config means for a server that runs."""

import re
from collections.abc import Mapping

import pytest

from omlx_server.errors import ConfigError
from omlx_server.settings import Loaded, load
from omlx_server.settings.changes import Changes, changes
from omlx_server.settings.json_schema import json_schema


def loaded(**values: str) -> Loaded:
    """Names with two underscores for the dot."""
    overrides = {key.replace("__", "."): value for key, value in values.items()}
    return load(overrides=overrides, environ={})


def between(old: Mapping[str, str], new: Mapping[str, str]) -> Changes:
    return changes(loaded(**old).settings, loaded(**new))


def test_what_is_live_is_in_force_and_the_rest_waits() -> None:
    found = between({}, {"server__port": "9", "cache__hot_cache_max_bytes": "8MiB"})
    assert str(found) == (
        'cache.hot_cache_max_bytes "auto" -> 8MiB; needs a restart: server.port 8000 -> 9'
    )
    assert (found.in_force.server.port, found.in_force.cache.hot_cache_max_bytes) == (8000, 8 << 20)
    assert found.touch("cache") and found.touch("cache.hot_cache_max_bytes")
    assert not found.touch("server", "cache.remote", "cach")


def test_what_waits_is_told_again_and_goes_when_it_is_taken_back() -> None:
    first = between({}, {"server__port": "9"})
    assert [change.key for change in first.needs_restart] == ["server.port"]
    again = changes(first.in_force, loaded(server__port="9", scheduler__max_queue="7"))
    assert str(again) == "scheduler.max_queue 128 -> 7; needs a restart: server.port 8000 -> 9"
    back = changes(again.in_force, loaded(scheduler__max_queue="7"))
    assert (back.applied, back.needs_restart) == ((), ())
    assert str(back) == "nothing has changed"


def test_no_secret_is_shown() -> None:
    keys = {"auth__api_keys": "swordfish,sesame", "cache__remote": "redis://:hunter2@h/0"}
    found = between({}, keys)
    assert {change.key for change in found.applied} == {"auth.api_keys"}
    assert {change.key for change in found.needs_restart} == {"cache.remote"}
    assert not re.search("swordfish|sesame|hunter2", str(found))
    assert found.in_force.auth.api_keys[0].reveal() == "swordfish"
    another = changes(found.in_force, loaded(auth__api_keys="swordfish,simsim"))
    assert another.touch("auth"), "keys that look alike are not the same"


def test_a_door_that_stays_open_keeps_its_keys() -> None:
    """The new settings would do by themselves; with the host that stays they would not."""
    open_to_all = {"server__host": "0.0.0.0", "auth__api_keys": "k"}
    with pytest.raises(ConfigError, match=r"0\.0\.0\.0 is open to other machines") as caught:
        between(open_to_all, {})
    assert "restart" in (caught.value.hint or "")


def test_only_a_config_that_says_so_takes_all_keys_away() -> None:
    with pytest.raises(ConfigError, match=r"auth\.api_keys is not in the config any more"):
        between({"auth__api_keys": "k"}, {"scheduler__max_queue": "7"})
    assert not between({"auth__api_keys": "k"}, {"auth__api_keys": "[]"}).in_force.auth.api_keys


def test_the_cold_tier_can_be_left_and_not_entered() -> None:
    only = {"cache__hot_cache_only": "true"}
    assert between({}, only).in_force.cache.hot_cache_only
    back = between(only, {})
    assert back.in_force.cache.hot_cache_only and not back.applied
    stored = {"responses__store": "disk"}
    assert not between(stored, {**stored, **only}).applied, "responses would be lost"


def test_the_mode_of_speculation_is_live_and_the_draft_model_waits() -> None:
    found = between({}, {"speculation__mode": "ngram", "speculation__draft_model": "small"})
    drafts = found.in_force.speculation
    assert (drafts.mode, drafts.draft_model) == ("ngram", "")
    assert [change.key for change in found.needs_restart] == ["speculation.draft_model"]


def test_every_key_can_be_compared_and_written() -> None:
    defaults = loaded()
    found = changes(defaults.settings, defaults)
    assert (found.applied, found.needs_restart) == ((), ())
    others = loaded(
        models__aliases='{"a": "b"}',
        models__overrides='{"a": {"ttl": 5, "kv_cache": {"bits": 8}}}',
        server__sse_ping_seconds="2.5",
        cache__cold_dir="/x",
        server__cors_origins="https://a.example",
    )
    told = str(changes(defaults.settings, others))
    assert 'models.aliases {} -> {"a": "b"}' in told
    assert "server.sse_ping_seconds 5 -> 2.5" in told
    assert '"kv_cache": {"bits": 8}' in told
    assert "cache.cold_dir " in told and '-> "/x"' in told


def test_the_schema_says_what_is_live() -> None:
    server = json_schema()["$defs"]["ServerSettings"]["properties"]
    assert server["cors_origins"]["description"].endswith("; applies while the server runs")
    assert "applies" not in server["port"]["description"]
