"""One value of a TOML file is changed, and nothing else."""

import tomllib

import pytest

from omlx_server.settings.edit import with_value, without

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
    after = tomllib.loads(without(there, ALIAS))
    assert after.pop("models").get("aliases") == before.pop("models", {}).get("aliases", {})
    assert after == before


@pytest.mark.parametrize("text", ["models = 3\n", "[models]\naliases = 3\n", "[models\n"])
def test_what_would_change_otherwise_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        with_value(text, ALIAS, "x")


TEXT = """# first
[a.x] # x
b = 1
# within
c = \'\'\'
[server]
# no comment\'\'\'

# The server.
[server]
port = 1  # one

[a.x."y.z"]
d = 2
[[other]]
[a.xx]
e = 3
# last
"""


def test_a_table_goes_with_all_its_headings_and_no_comment_of_what_follows() -> None:
    assert without(TEXT, ("a", "x")) == (
        "# first\n\n# The server.\n[server]\nport = 1  # one\n\n[[other]]\n[a.xx]\ne = 3\n# last\n"
    )
    assert without(TEXT, ("a", "xx")).endswith("d = 2\n[[other]]\n# last\n")
    assert without(TEXT, ("a", "y")) == TEXT
    assert without(TEXT.replace("\n", "\r\n"), ("a", "x", "y.z")).endswith(
        "port = 1  # one\r\n\r\n[[other]]\r\n[a.xx]\r\ne = 3\r\n# last\r\n"
    )
    assert without("[a]\nb = 1\n[c.d]\ne = 1\n\n", ("c", "d")) == "[a]\nb = 1\n"
