"""`config get | set | edit | validate | schema`: one key changes, the rest of the file does not,
and what is invalid is never written."""

import json
import stat
import sys
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as bounded
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from omlx_server import settings
from omlx_server.cli.app import app
from omlx_server.cli.config import change
from omlx_server.cli.config import change as config_edit
from omlx_server.cli.talk.typed import read_typed
from omlx_server.errors import UsageError
from omlx_server.settings import edit
from omlx_server.settings.json_schema import json_schema
from omlx_server.settings.values import plain
from tests.cli.home import CONFIG
from tests.cli.program import HEAVY, imported_by

EXAMPLE = Path(__file__).parents[2] / "config" / "omlx.example.toml"
COMMENTED = """\
# Mine.

[server]
# Why this port.
port = 9000      # and no other
host = "127.0.0.1"

# Below is the rest.
[cache]
enabled = true
"""
runner = CliRunner()


def config(*arguments: str, env: dict[str, str] | None = None) -> Result:
    return runner.invoke(app, ["config", *arguments], env=env)


def done(*arguments: str, env: dict[str, str] | None = None) -> str:
    result = config(*arguments, env=env)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def file(home: Path) -> Path:
    path = home / CONFIG
    path.write_text(COMMENTED)
    return path


# --- set -----------------------------------------------------------------------------------------


def test_set_changes_one_value_and_no_other_letter(file: Path) -> None:
    assert done("set", "server.port", "8123").startswith("server.port = 8123")
    assert file.read_text() == COMMENTED.replace("port = 9000 ", "port = 8123 ")


def test_a_size_is_said_as_it_was_written(file: Path) -> None:
    key = "cache.hot_cache_max_bytes"
    assert done("set", key, "50GB").startswith(f'{key} = "50GB"')
    assert done("get", key) == "50GB\n"
    assert 'hot_cache_max_bytes = "50GB"' in done("show").splitlines()


def test_a_new_key_and_a_new_section_leave_all_lines_that_were_there(file: Path) -> None:
    done("set", "server.max_body_bytes", "16MiB")
    done("set", "scheduler.max_queue", "7")
    lines = file.read_text().splitlines()
    kept = iter(lines)
    assert all(line in kept for line in COMMENTED.splitlines()), lines
    assert tomllib.loads(file.read_text())["server"]["max_body_bytes"] == "16MiB"
    assert done("get", "scheduler.max_queue") == "7\n"


def test_without_a_file_the_users_is_made_for_its_owner_only(home: Path) -> None:
    made = home / CONFIG
    made.parent.rmdir()
    done("set", "logging.level", "debug")
    assert settings.load().source == made
    assert settings.load().settings.logging.level == "debug"
    assert stat.S_IMODE(made.stat().st_mode) == 0o600
    assert stat.S_IMODE(made.parent.stat().st_mode) == 0o700
    assert [path.name for path in made.parent.iterdir()] == ["config.toml"]


def test_mode_and_link_of_a_file_stay(home: Path) -> None:
    real = home / "dotfiles.toml"
    real.write_text(COMMENTED)
    real.chmod(0o640)
    (home / CONFIG).symlink_to(real)
    done("set", "server.port", "1")
    assert (home / CONFIG).is_symlink()
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    assert "port = 1 " in real.read_text()


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("server.port", "many", "server.port: expected an integer from 0 to 65535"),
        ("server.prot", "1", "unknown key server.prot"),
        ("port", "1", "unknown section or key port"),
        ("models.aliases.big", "starter", "`omlx-server alias NAME TARGET` makes"),
        ("server.host", "0.0.0.0", "auth.api_keys is empty"),
        ("scheduler.prefill_chunk_tokens", "4096", "max_batched_tokens"),
        ("kv_cache.bits", "9", "kv_cache.bits: expected"),
    ],
)
def test_what_would_be_invalid_is_refused_and_the_file_stays(
    file: Path, key: str, value: str, words: str
) -> None:
    result = config("set", key, value)
    assert (result.exit_code, result.stdout) == (2, "")
    assert words in result.stderr
    assert file.read_text() == COMMENTED
    assert [path.name for path in file.parent.iterdir()] == ["config.toml"]


def test_a_file_that_is_broken_elsewhere_is_not_touched(file: Path) -> None:
    for text, words in (("[server]\nport = ", "line 2, column 8"), ("server = 1\n", "[server]")):
        file.write_text(text)
        result = config("set", "server.port", "1")
        assert result.exit_code == 2
        assert words in result.stderr
        assert file.read_text() == text


def test_set_repairs_the_key_that_was_wrong(file: Path) -> None:
    file.write_text('[server]\nport = "many" # oops\n')
    done("set", "server.port", "8000")
    assert file.read_text() == "[server]\nport = 8000 # oops\n"


def test_a_file_that_can_not_be_written_is_one_line(home: Path) -> None:
    (home / "file").touch()
    result = config("set", "server.port", "1", "--config", str(home / "file" / "omlx.toml"))
    assert result.exit_code == 1
    assert "can't be written" in result.stderr


def test_keys_of_the_environment_let_a_file_open_the_host(file: Path) -> None:
    done("set", "server.host", "0.0.0.0", env={"OMLX_AUTH__API_KEYS": "k"})
    assert 'host = "0.0.0.0"' in file.read_text()


def test_a_secret_is_written_but_not_said(file: Path) -> None:
    said = config("set", "auth.api_keys", "hunter2,other")
    assert said.exit_code == 0
    assert "hunter2" not in said.output
    assert tomllib.loads(file.read_text())["auth"]["api_keys"] == ["hunter2", "other"]
    assert "hunter2" not in config("get", "auth.api_keys").output


def test_a_secret_closes_the_file_to_others_and_says_so(file: Path) -> None:
    file.chmod(0o644)
    quiet = config("set", "server.port", "1")
    assert (stat.S_IMODE(file.stat().st_mode), quiet.stderr) == (0o644, "")
    for key in ("auth.api_keys", "cache.remote"):
        file.chmod(0o644)
        result = config("set", key, "redis://h/0")
        assert result.exit_code == 0
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert "could be read by others; now it is for its owner only" in result.stderr
        assert config("set", key, "redis://h/1").stderr == ""


def test_a_list_without_keys_is_no_secret(file: Path) -> None:
    file.chmod(0o644)
    assert config("set", "auth.api_keys", "").stderr == ""
    assert stat.S_IMODE(file.stat().st_mode) == 0o644


def test_a_value_from_stdin_stands_in_no_command_line(file: Path) -> None:
    for typed in ("hunter2,other\n", "hunter2,other\r\n", "hunter2,other"):
        said = runner.invoke(app, ["config", "set", "auth.api_keys", "-"], input=typed)
        assert said.exit_code == 0, said.output
        assert "hunter2" not in said.output
        assert tomllib.loads(file.read_text())["auth"]["api_keys"] == ["hunter2", "other"]
        done("set", "auth.api_keys", "")
    for wrong in (b"\xff\n", b"k" * (1 << 20) + b"k"):
        refused = runner.invoke(app, ["config", "set", "models.default", "-"], input=wrong)
        assert (refused.exit_code, refused.stdout) == (2, "")
        assert "what stdin gives is" in refused.stderr


def test_keys_may_come_one_per_line(file: Path) -> None:
    for typed in ("a,b\n", "a\nb\n", "a\r\n\r\nb\r\n", '["a",\n"b"]\n'):
        done("set", "auth.api_keys", "")
        said = runner.invoke(app, ["config", "set", "auth.api_keys", "-"], input=typed)
        assert said.exit_code == 0, said.output
        assert tomllib.loads(file.read_text())["auth"]["api_keys"] == ["a", "b"]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("models.default", "a\udcff"),
        ("models.overrides.m.chat_template_kwargs", '{"a": "\\ud800"}'),
    ],
)
def test_what_is_no_text_is_refused_and_leaves_nothing(file: Path, key: str, value: str) -> None:
    result = config("set", key, value)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "is not UTF-8" in result.stderr
    assert file.read_text() == COMMENTED
    assert [path.name for path in file.parent.iterdir()] == ["config.toml"]


def test_a_closed_stdin_is_empty_and_no_terminal(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("EDITOR", "VISUAL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "stdin", None)
    for key in ("models.default", "auth.api_keys"):
        assert change.set_value(key=key, value="-", config=None) == 0
    assert tomllib.loads(file.read_text())["models"]["default"] == ""
    with pytest.raises(UsageError, match="no terminal"):
        config_edit.run(config=None)
    assert read_typed("") is None


def test_it_says_when_the_environment_wins(file: Path) -> None:
    result = config("set", "server.port", "1", env={"OMLX_SERVER__PORT": "2"})
    assert "env OMLX_SERVER__PORT wins" in result.stderr


VALUES = {
    "server.port": st.integers(0, 65535).map(str),
    "server.sse_ping_seconds": st.sampled_from(["0.5", "3", "12.25"]),
    "server.max_body_bytes": st.sampled_from(["8MiB", "5000000", "1 GB"]),
    "server.allowed_hosts": st.sampled_from(["a,b", '["c"]', "*"]),
    "models.default": st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20),
    "models.use_hf_cache": st.sampled_from(["true", "no"]),
    "models.overrides": st.sampled_from(['{"org/a": {"kv_cache": {"bits": 8}}}', "{}"]),
    "cache.hot_cache_max_bytes": st.sampled_from(["auto", "8GiB", "1234567"]),
    "scheduler.prefill_chunk_tokens": st.sampled_from(["auto", "256"]),
}
FILES = st.sampled_from(
    [
        "",
        "\ufeff# only a comment",
        COMMENTED,
        COMMENTED.replace("\n", "\r\n"),
        'server.port = 1 # dotted\ncache.enabled = false\n\n[models]\ndefault = """a\nb"""\n',
        'server = { port = 1, host = "::1" }\n# end\n',
        "[server]\nport = 1\n[cache]\nenabled = true\n[models.overrides.a.kv_cache]\nbits = 8\n",
        EXAMPLE.read_text(),
    ]
)


@bounded(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(FILES, st.sampled_from(sorted(VALUES)), st.data())
def test_set_means_what_the_flag_means_and_leaves_all_other_keys(
    home: Path, text: str, key: str, data: st.DataObject
) -> None:
    path = home / "any.toml"
    path.write_bytes(text.encode())
    before = settings.load(path, {}, {}).settings
    value = data.draw(VALUES[key])
    edit.set_key(path, key, value)
    after = settings.load(path, {}, {})
    assert after.settings == settings.load(None, _as_flags(before, key, value), {}).settings
    assert after.origins[key] == f"file {path}"
    comments = [line.partition("#")[2] for line in text.splitlines() if "#" in line]
    assert all(comment in path.read_text("utf-8-sig") for comment in comments)


def _as_flags(values: settings.Settings, key: str, value: str) -> dict[str, str]:
    """All that was set before and is not the default, as flags; and the new one."""
    flags = {}
    for section, table in values:
        for name, old in table:
            if old != getattr(getattr(settings.Settings(), section), name):
                flags[f"{section}.{name}"] = _flag(old)
    return flags | {key: value}


def _flag(value: object) -> str:
    if isinstance(value, dict):
        return json.dumps(plain(value))
    return str(value).lower() if isinstance(value, bool) else str(value)


# --- get -----------------------------------------------------------------------------------------


def test_get_prints_a_whole_section_as_a_config_file_has_it(home: Path) -> None:
    (home / CONFIG).write_text(
        '[auth]\napi_keys = ["hunter2-hunter2"]\n[logging]\nlevel = "debug"\n'
    )
    assert done("get", "logging") == 'level = "debug"\nformat = "auto"\nfile = ""\n'
    shown = json.loads(done("get", "logging", "--json"))
    assert shown == {"level": "debug", "format": "auto", "file": ""}
    for words in (("get", "auth"), ("get", "auth", "--json")):
        assert "hunter2" not in done(*words) and "**********" in done(*words)


def test_get_prints_what_a_script_can_use(file: Path, home: Path) -> None:
    assert done("get", "server.port") == "9000\n"
    assert done("get", "server.host") == "127.0.0.1\n"
    assert done("get", "cache.cold_dir").strip() == str(home / ".cache/omlx_server/kv")
    assert done("get", "cache.enabled") == "true\n"
    assert json.loads(done("get", "server.allowed_hosts", "--json")) == ["localhost", "127.0.0.1"]
    assert done("get", "server.port", "--set", "server.port=5") == "5\n"
    wrong = config("get", "server.prot")
    assert (wrong.exit_code, wrong.stdout) == (2, "")
    assert "did you mean server.port?" in wrong.stderr


def test_overrides_of_models_can_be_shown(file: Path) -> None:
    done("set", "models.overrides", '{"org/a": {"kv_cache": {"scheme": "affine", "bits": 8}}}')
    shown = json.loads(done("show", "--json"))["settings"]["models"]["overrides"]
    assert shown == {"org/a": {"kv_cache": {"scheme": "affine", "bits": 8}}}
    assert "org/a" in done("show")


def test_what_the_terminal_can_not_write_is_escaped(file: Path) -> None:
    ascii_only = CliRunner(charset="ascii")
    for arguments, words in (
        (["set", "models.default", "caf\u00e9"], 'models.default = "caf\\xe9"'),
        (["get", "models.default", "--json"], '"caf\\u00e9"\n'),
        (["get", "models.default"], "caf\\xe9\n"),
        (["show"], 'default = "caf\\xe9"\n'),
    ):
        said = ascii_only.invoke(app, ["config", *arguments])
        assert said.exit_code == 0, said.output
        assert words in said.stdout


# --- edit ----------------------------------------------------------------------------------------


def editing(home: Path, script: str) -> dict[str, str]:
    """An editor that is a shell script; its file is $1."""
    path = home / "editor"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o700)
    return {"EDITOR": f"{path} --wait", "VISUAL": ""}


def test_edit_writes_what_is_valid(file: Path) -> None:
    env = editing(file.parent, 'sed -i.bak s/9000/9001/ "$2" && rm "$2.bak"')
    done("edit", env=env)
    assert file.read_text() == COMMENTED.replace("9000", "9001")
    assert not list(file.parent.glob("*draft*"))


def test_edit_keeps_the_draft_of_what_is_not(file: Path) -> None:
    env = editing(file.parent, 'sed -i.bak s/9000/many/ "$2" && rm "$2.bak"')
    result = config("edit", env=env)
    assert result.exit_code == 2
    assert "line 5" in result.stderr
    assert file.read_text() == COMMENTED
    draft = next(file.parent.glob("*draft*"))
    assert "port = many" in draft.read_text()
    done("edit", env=editing(file.parent, 'sed -i.bak s/many/7/ "$2" && rm "$2.bak"'))
    assert "port = 7 " in file.read_text()


def test_edit_changes_nothing_when_the_editor_fails_or_does_nothing(file: Path) -> None:
    assert "Nothing has changed" in done("edit", env=editing(file.parent, "true"))
    assert config("edit", env=editing(file.parent, "exit 3")).exit_code == 2
    assert config("edit", env={"EDITOR": "/no/editor", "VISUAL": ""}).exit_code == 2
    assert file.read_text() == COMMENTED


def test_without_an_editor_and_a_terminal_edit_does_not_wait(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = file.parent / "bin"
    place.mkdir()
    for name in ("vi", "nano"):
        (place / name).write_text(f"#!/bin/sh\ntouch {file.parent}/started\n")
        (place / name).chmod(0o700)
    monkeypatch.setenv("PATH", str(place))
    before = sorted(file.parent.iterdir())
    result = config("edit", env={"EDITOR": "", "VISUAL": ""})
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: there is no terminal to edit on\nhint: ")
    assert sorted(file.parent.iterdir()) == before
    unbalanced = config("edit", env={"EDITOR": "vim 'x", "VISUAL": ""})
    assert (unbalanced.exit_code, len(unbalanced.stderr.splitlines())) == (2, 2)


# --- validate and schema -------------------------------------------------------------------------


def test_validate_warns_of_cold_keys_without_a_cold_tier(file: Path) -> None:
    assert config("validate").stderr == ""
    file.write_text('[cache]\nhot_cache_only = true\ncold_dir = "/x"\n')
    result = config("validate")
    assert result.exit_code == 0
    assert "no effect: cache.cold_dir" in result.stderr
    file.write_text('[cache]\nhot_cache_only = false\ncold_dir = "/x"\n')
    assert config("validate").stderr == ""


def test_validate_warns_of_keys_that_others_can_read(file: Path) -> None:
    file.write_text('[auth]\napi_keys = ["a"]\n')
    file.chmod(0o644)
    assert "chmod 600" in config("validate").stderr
    file.chmod(0o600)
    assert config("validate").stderr == ""


def test_validate_fails_as_serve_would(file: Path) -> None:
    file.write_text("[server]\nprot = 1\n")
    assert config("validate").exit_code == 2
    for text, words in (
        ('models.overrides.x.tool_parser = "nope"', "can't be nope"),
        ('models.overrides.x.reasoning_parser = "nope"', "can't be nope"),
        ("models.overrides.x.chat_template_kwargs = {enable_thinkin = true}", "enable_thinking?"),
        ('cache.remote = "nope://user:word@host"', "no known scheme"),
    ):
        file.write_text(f"{text}\n")
        result = config("validate")
        assert (result.exit_code, result.stdout) == (2, ""), text
        assert words in result.stderr and "word@" not in result.stderr
    file.write_text('cache = { remote = "nope://host", enabled = false }\n')
    assert config("validate").exit_code == 0  # nor does serve look at it


def test_validate_imports_nothing_heavy(file: Path) -> None:
    file.write_text('models.overrides.x.tool_parser = "mistral"\n')
    assert not imported_by("config", "validate", "--config", str(file)) & (HEAVY | {"jinja2"})


def test_the_schema_takes_the_example_and_refuses_what_the_settings_refuse() -> None:
    schema = json.loads(done("schema"))
    assert schema == json.loads(json.dumps(json_schema()))
    jsonschema.Draft202012Validator.check_schema(schema)
    check = jsonschema.Draft202012Validator(schema)
    check.validate(tomllib.loads(EXAMPLE.read_text()))
    assert check.is_valid({"cache": {"cold_cache_max_bytes": 0, "hot_cache_max_bytes": "8 GiB"}})
    assert check.is_valid({"cache": {"cold_cache_max_bytes": 10**6, "cold_min_free_disk": "5 B"}})
    refused: tuple[dict[str, Any], ...] = (
        {"server": {"port": 70000}},
        {"server": {"prot": 1}},
        {"servers": {}},
        {"cache": {"cold_cache_max_bytes": "many"}},
        {"cache": {"cold_cache_max_bytes": 5}},
        {"memory": {"limit": "3"}},
        {"logging": {"level": "loud"}},
    )
    for wrong in refused:
        assert not check.is_valid(wrong), wrong
