"""One value of a TOML file is changed, and nothing else."""

import tomllib

import pytest

from omlx_server.settings.toml_text import with_value

ALIAS = ("models", "aliases", "a")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# mine\n[server]\nport = 1  # one\n",
        "[models]\naliases = {b = 'c'}  # x\n",
        "[models.aliases]\nb = 'c'\n",
        "models.aliases.b = 'c'\n",
        "models = {aliases = {b = 'c'}}\n",
    ],
)
def test_a_key_that_is_set_and_removed_leaves_what_was_there(text: str) -> None:
    before = tomllib.loads(text)
    there = with_value(text, ALIAS, "x")
    assert tomllib.loads(there)["models"]["aliases"]["a"] == "x"
    after = tomllib.loads(with_value(there, ALIAS, None))
    assert after.pop("models").get("aliases") == before.pop("models", {}).get("aliases", {})
    assert after == before


@pytest.mark.parametrize("text", ["models = 3\n", "[models]\naliases = 3\n", "[models\n"])
def test_what_would_change_otherwise_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        with_value(text, ALIAS, "x")
