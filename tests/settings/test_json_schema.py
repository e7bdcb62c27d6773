"""The JSON schema of the config file."""

import pytest

from omlx_server import settings
from omlx_server.settings.json_schema import json_schema


def test_the_schema_is_the_same_whoever_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = json_schema()
    monkeypatch.setenv("HOME", "/home/of/another")
    assert json_schema() == ours
    cache = ours["$defs"]["CacheSettings"]["properties"]
    assert cache["cold_dir"]["default"] == "~/.cache/omlx_server/kv"


def test_the_schema_tells_of_tables_in_tables() -> None:
    table = json_schema()["$defs"]["KvCacheOverride"]
    scheme = table["properties"]["scheme"]
    assert scheme["description"] == "one of none, affine, rotated, turboquant"
    assert scheme["anyOf"][0]["enum"] == ["none", "affine", "rotated", "turboquant"]
    assert not table["additionalProperties"]


def test_every_key_of_the_schema_says_what_it_takes() -> None:
    schema = json_schema()
    for dotted in settings.KEYS:
        section, _, key = dotted.partition(".")
        table = schema["properties"][section]["$ref"].rpartition("/")[2]
        assert schema["$defs"][table]["properties"][key]["description"], dotted
