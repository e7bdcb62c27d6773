"""`config show` prints what would set the same again, and no secret; `config path` the file."""

import json
import re
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from omlx_server import settings
from omlx_server.cli.app import app
from tests.cli.home import CONFIG

runner = CliRunner()


def show(*arguments: str, env: dict[str, str] | None = None) -> str:
    result = runner.invoke(app, ["config", "show", *arguments], env=env)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_what_it_shows_is_a_config_file_that_sets_the_same(home: Path) -> None:
    overrides = {
        "server.port": "0",
        "server.max_body_bytes": "1000000",
        "server.sse_ping_seconds": "0.25",
        "models.default": 'a "quoted" \\ name',
        "scheduler.max_batch_size": "3",
    }
    sets = [part for key, value in overrides.items() for part in ("--set", f"{key}={value}")]
    copy = home / "copy.toml"
    copy.write_text(show(*sets))
    assert settings.load(copy).settings == settings.load(None, overrides).settings
    assert len(settings.load(copy).origins) == show().count(" = ")


def test_tables_are_shown_as_a_config_file_has_them(home: Path) -> None:
    (home / CONFIG).write_text(
        '[models]\naliases = { "gpt 4" = "org/a" }\n[models.overrides."org/a.b"]\nttl = 5\n'
        "sampling = { top_p = 0.5 }\n"
        "chat_template_kwargs = { a = 1.0, b = 'x\\ny', c = inf, d = \"\\u007f\" }\n"
    )
    for arguments in ([], ["--origin"]):
        (home / "copy.toml").write_text(show(*arguments))
        done = runner.invoke(app, ["config", "show", "--config", "copy.toml"])
        assert done.exit_code == 0, done.output
        copied = settings.load(home / "copy.toml").settings
        assert copied == settings.load().settings
        given = copied.models.overrides["org/a.b"].chat_template_kwargs
        assert list(map(str, given.values())) == ["1.0", "x\\ny", "inf", "\x7f"]


def test_each_value_is_explained(home: Path) -> None:
    lines = show("--explain").splitlines()
    assert lines[lines.index("port = 8000") - 1].startswith("# The port to listen on.")
    assert sum(not line.startswith("#") for line in lines) == sum(
        not line.startswith("#") for line in show().splitlines()
    )


def test_origins_are_told_per_key(home: Path) -> None:
    (home / CONFIG).write_text("[scheduler]\nmax_queue = 7\n")
    text = show(
        "--origin", "--set", "sampling.source=openai", env={"OMLX_SERVER__HOST": "localhost"}
    )
    comments = {
        line.split(" = ")[0]: line.rpartition("# ")[2]
        for line in text.splitlines()
        if " = " in line
    }
    assert comments["host"] == "env OMLX_SERVER__HOST"
    assert comments["max_queue"] == f"file {home / CONFIG}"
    assert comments["source"] == "flag"
    assert comments["port"] == "default"
    assert tomllib.loads(text)["scheduler"]["max_queue"] == 7


def test_json_holds_values_origins_and_the_file(home: Path) -> None:
    (home / CONFIG).write_text("[server]\nport = 9000\n")
    document = json.loads(show("--json"))
    assert document["source"] == str(home / CONFIG)
    assert document["settings"]["server"]["port"] == 9000
    assert document["settings"]["server"]["max_body_bytes"] == 32 * 2**20
    assert document["origins"]["server.port"] == f"file {home / CONFIG}"
    assert set(document["origins"]) == set(settings.KEYS)


def test_keys_of_users_are_never_shown() -> None:
    env = {"OMLX_AUTH__API_KEYS": "hunter2"}
    for arguments in ([], ["--origin"], ["--json"]):
        text = show(*arguments, env=env)
        assert "hunter2" not in text
        assert "**" in text


def test_a_set_without_a_value_explains_itself() -> None:
    result = runner.invoke(app, ["config", "show", "--set", "server.port"])
    assert result.exit_code == 2
    assert "expected SECTION.KEY=VALUE" in result.stderr


def test_path_prints_the_file_in_use(home: Path) -> None:
    none = runner.invoke(app, ["config", "path"])
    assert (none.exit_code, none.stdout) == (1, "")
    assert "/etc/omlx_server/config.toml" in none.stderr
    (home / CONFIG).touch()
    found = runner.invoke(app, ["config", "path"])
    assert (found.exit_code, found.stdout.strip()) == (0, str(home / CONFIG))


WRONG = """
[server]
port = 99999
hots = "x"
[memry]
limit = 3
[memory]
limit = 3
[scheduler]
policy = "x"
[models.overrides."org/x"]
ttl = "x"
contxt = 3
[kv_cache]
scheme = "affine"
bits = 5
"""


def test_validate_tells_all_errors_at_once(home: Path) -> None:
    (home / CONFIG).write_text(WRONG)
    done = runner.invoke(app, ["config", "validate"], env={"OMLX_SERVER__PRT": "3"})
    assert done.exit_code == 2 and done.stdout == ""
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    begin = r"error: (?:unknown (?:key|setting|section or key) )?([\w./]+)"
    assert [re.match(begin, line)[1] for line in errors] == [  # type: ignore[index]
        "server.hots",
        "memry",
        "OMLX_SERVER__PRT",
        "models.overrides.org/x.ttl",
        "models.overrides.org/x.contxt",
        "server.port",
        "memory.limit",
        "scheduler.policy",
        "kv_cache.scheme",
    ]
    doctor = runner.invoke(app, ["doctor", "--json"], env={"OMLX_SERVER__PRT": "3"})
    findings = json.loads(doctor.stdout)["findings"]
    assert sum(one["what"] == "config" for one in findings) == len(errors)


def test_validate_tells_all_that_contradicts_itself_and_all_wrong_names(home: Path) -> None:
    (home / CONFIG).write_text(
        "server.host = '0.0.0.0'\nscheduler.prefill_chunk_tokens = 64\ncache.block_tokens = 128\n"
    )
    done = runner.invoke(app, ["config", "validate"])
    assert (done.exit_code, done.stderr.count("error: ")) == (2, 2)
    (home / CONFIG).write_text(
        "cache.remote = 'ftp://x'\n[models.overrides]\n"
        "a = { tool_parser = 'x', chat_template = 'none.jinja' }\nb = { reasoning_parser = 'y' }\n"
    )
    done = runner.invoke(app, ["config", "validate"])
    assert (done.exit_code, done.stderr.count("error: ")) == (2, 4)


@pytest.mark.parametrize(
    "command",
    [
        *("config show", "config get server", "config set server.port 1", "config validate"),
        *("config unset server.port", "config path", "config edit", "serve", "up", "status"),
        *("chat", "launch claude", "list", "pull x", "bench", "cache stats", "doctor"),
    ],
)
@pytest.mark.parametrize("by", ["--config", "OMLX_CONFIG", "default"])
def test_a_config_that_is_a_directory_is_an_error_everywhere(
    command: str, by: str, home: Path
) -> None:
    place = home / CONFIG if by == "default" else home / "place"
    place.mkdir()
    words = [*command.split(), *(["--config", "place"] if by == "--config" else [])]
    env = {"EDITOR": "true"} | ({"OMLX_CONFIG": "place"} if by == "OMLX_CONFIG" else {})
    done = runner.invoke(app, words, env=env)
    assert done.exit_code == 1
    assert "can't be read: it is a directory" in done.output
    assert not any(place.iterdir())
