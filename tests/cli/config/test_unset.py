"""`config unset KEY`: the key leaves the file, nothing else does, and what is in force is said."""

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from omlx_server.cli.app import app
from omlx_server.settings import edit
from tests.cli.home import CONFIG

FILE = """\
# Mine.
[server]
# Why this port.
port = 9000  # and no other
host = "127.0.0.1"

[auth]
api_keys = ["hunter2"]

[models]
aliases = { small = "org/a" } # names

[models.overrides."org/a"]
ttl = 5
kv_cache = { scheme = "affine", bits = 8 }
chat_template_kwargs = { "with.dots" = 1 }

[models.overrides."org/a".sampling]
top_p = 0.5
"""


A_MODEL = '\n[models.overrides."org/a"]\n'
TEMPLATE = 'chat_template_kwargs = { "with.dots" = 1 }\n'
SAMPLING = '\n[models.overrides."org/a".sampling]\ntop_p = 0.5\n'


@pytest.fixture
def file(home: Path) -> Path:
    path = home / CONFIG
    path.write_text(FILE)
    path.chmod(0o600)
    return path


def unset(*words: str, env: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(app, ["config", "unset", *words], env=env)


@pytest.mark.parametrize(
    ("key", "left", "said"),
    [
        ("server.port", "port = 9000  # and no other\n", "server.port = 8000  # default"),
        ("auth.api_keys", 'api_keys = ["hunter2"]\n', "auth.api_keys = []  # default"),
        ("models.aliases", 'aliases = { small = "org/a" } # names\n', "models.aliases = {}  # def"),
        ("models.overrides.org/a.ttl", "ttl = 5\n", "models.overrides.org/a.ttl is not set"),
        ('models.overrides."org/a".sampling.top_p', SAMPLING, "is not set"),
        ("models.overrides.org/a.sampling", SAMPLING, "is not set"),
        ("models.overrides", FILE[FILE.index(A_MODEL) :], "models.overrides = {}  # default"),
        ("models.overrides.org/a.kv_cache.bits", ", bits = 8", "is not set"),
        ("models.overrides.org/a.chat_template_kwargs.with.dots", TEMPLATE, "is not set"),
    ],
)
def test_one_key_leaves_the_file_and_no_other_letter(
    file: Path, key: str, left: str, said: str
) -> None:
    done = unset(key)
    assert (done.exit_code, done.stderr) == (0, "")
    assert said in done.stdout
    assert done.stdout.endswith(f"; {file} does not set it any more\n")
    assert file.read_text().replace("  }", " }") == FILE.replace(left, "").replace("  }", " }")
    again = unset(key)
    assert (again.exit_code, again.stdout) == (1, "")
    assert again.stderr.startswith(f"error: {file} does not set {key}\nhint: in force is {key}")


@pytest.mark.parametrize("name", ["org/a", '"org/a"'])
def test_all_that_a_model_has_otherwise_goes_in_one_go(file: Path, name: str) -> None:
    done = unset(f"models.overrides.{name}")
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.startswith(f"models.overrides.{name} is not set; ")
    assert file.read_text() == FILE[: FILE.index(A_MODEL)]
    again = unset(f"models.overrides.{name}")
    assert again.exit_code == 2
    assert again.stderr.endswith(f"{name}\nhint: no model has any overrides\n")


@pytest.mark.parametrize(
    "gone",
    [[".presets.coder.system", ".presets.coder.seed"], [".presets.coder"], [".presets"], [""]],
)
def test_what_is_empty_then_goes_as_well(file: Path, gone: list[str]) -> None:
    text = f"{FILE}\n# The log.\n[logging]\nlevel = 'debug'\n"
    file.write_text(text)
    starter = "models.overrides.starter"
    for name in ("system", "seed"):
        edit.set_key(file, f"{starter}.presets.coder.{name}", "7")
    for key in gone:
        assert unset(f"{starter}{key}").exit_code == 0
    assert file.read_text() == text


def test_a_model_without_overrides_is_told_from_a_key_that_is_wrong(file: Path) -> None:
    assert "hint: there are overrides of org/a\n" in unset("models.overrides.org/b").stderr
    said = unset("models.overrides.org/a.nonsense")
    assert (said.exit_code, "a KEY is one of system, " in said.stderr) == (2, True)


def test_what_else_sets_the_key_is_said(file: Path) -> None:
    done = unset("server.port", env={"OMLX_SERVER__PORT": "7"})
    assert done.stdout.startswith("server.port = 7  # env OMLX_SERVER__PORT;")
    size = unset("cache.cold_cache_max_bytes")
    assert 'hint: in force is cache.cold_cache_max_bytes = "20GB"  # default' in size.stderr


def test_a_wrong_value_can_be_removed(file: Path) -> None:
    file.write_text("[server]\nport = 'many'\n")
    assert unset("server.port").exit_code == 0
    assert file.read_text() == "[server]\n"


@pytest.mark.parametrize(
    ("key", "text", "words"),
    [
        ("server.prot", FILE, "unknown key server.prot\nhint: did you mean server.port?"),
        ("server", FILE, "server is a section, not a key"),
        ("models.overrides.org/a.tll", FILE, "did you mean models.overrides.NAME.ttl?"),
        ("models.aliases.small", FILE, "`omlx-server alias"),
        ("server.port", "[server\nport = 1\n", "config.toml, line 1, column 8"),
        (
            "auth.api_keys",
            '[server]\nhost = "0.0.0.0"\n[auth]\napi_keys = ["k"]\n',
            "auth.api_keys is empty",
        ),
    ],
)
def test_what_can_not_be_removed_stays(file: Path, key: str, text: str, words: str) -> None:
    file.write_text(text)
    done = unset(key)
    assert (done.exit_code, done.stdout) == (2, "")
    assert words in done.stderr
    assert file.read_text() == text


def test_a_file_that_is_not_there_is_said(home: Path) -> None:
    assert unset("server.port").exit_code == 1
    named = unset("server.port", "--config", "none.toml")
    assert (named.exit_code, "none.toml not found" in named.stderr) == (2, True)
    assert not list(home.rglob("*.toml"))
