"""Which layer wins, where the file is looked for, and what of its text is refused."""

import itertools
from pathlib import Path

import pytest

from omlx_server.settings import KEYS, Settings, load, warnings
from omlx_server.settings.unknown_keys import SEE_ALL, nearest
from tests.settings.reading import refusal, value_of, write

SAMPLES = {
    "server.host": ('"::1"', "::1", "localhost", "127.0.0.2"),
    "server.port": ("1", 1, "2", "3"),
    "server.max_body_bytes": ('"1MiB"', 2**20, "2MiB", "3000000"),
    "server.sse_ping_seconds": ("1.5", 1.5, "2", "3"),
    "auth.api_keys": ('["a"]', None, "b,c", '["d"]'),
    "server.allowed_hosts": ('["a"]', ("a",), "b,c", '["d"]'),
    "models.use_hf_cache": ("false", False, "true", "no"),
    "scheduler.max_queue": ("5", 5, "6", "7"),
    "logging.level": ('"debug"', "debug", "error", "warning"),
}


@pytest.mark.parametrize("key", SAMPLES)
@pytest.mark.parametrize("layers", [*itertools.product([False, True], repeat=4)])
def test_the_strongest_layer_wins_for_each_key(
    key: str, layers: tuple[bool, bool, bool, bool], home: Path
) -> None:
    in_file, from_file, from_env, from_flag = SAMPLES[key]
    section, name = key.split(".")
    env_name = f"OMLX_{section.upper()}__{name.upper()}"
    has_fallback, has_file, has_env, has_flag = layers
    path = write(home / "c.toml", f"[{section}]\n{name} = {in_file}\n" if has_file else "")
    env = {env_name: from_env} if has_env else {}
    flag = {key: from_flag} if has_flag else {}
    fallback = {key: from_flag} if has_fallback else {}
    loaded = load(path, flag, env, fallback)

    only_winner = (
        load(None, flag, {})
        if has_flag
        else load(None, {key: from_env}, {})
        if has_env
        else load(path, {}, {})
        if has_file
        else load(None, fallback, {})
    )
    origin = "flag" if has_flag else f"env {env_name}" if has_env else f"file {path}"
    origin = origin if any(layers[1:]) else "fallback"
    assert value_of(loaded, key) == value_of(only_winner, key)
    assert loaded.origins[key] == (origin if any(layers) else "default")
    assert all(loaded.origins[other] == "default" for other in KEYS if other != key)
    if has_file and from_file is not None and not (has_env or has_flag):
        assert value_of(loaded, key) == from_file


def test_layers_are_merged_key_by_key_not_table_by_table(home: Path) -> None:
    path = write(home / "c.toml", "[server]\nport = 1\nmax_body_bytes = '5KB'\n")
    server = load(path, {"server.host": "::1"}, {"OMLX_SERVER__PORT": "2"}).settings.server
    assert (server.host, server.port, server.max_body_bytes) == ("::1", 2, 5000)


def test_the_real_environment_is_read_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMLX_SERVER__PORT", "77")
    assert load().settings.server.port == 77


def test_the_file_is_looked_for_in_order(home: Path) -> None:
    assert load(None, {}, {}).source is None
    user = write(home / ".config/omlx_server/config.toml", "[server]\nport = 4\n")
    assert load(None, {}, {}).source == user
    named = write(home / "by-env.toml", "[server]\nport = 2\n")
    assert load(None, {}, {"OMLX_CONFIG": str(named)}).settings.server.port == 2
    flag = write(home / "by-flag.toml", "[server]\nport = 1\n")
    assert load(flag, {}, {"OMLX_CONFIG": str(named)}).settings.server.port == 1


def test_a_named_file_must_exist(home: Path) -> None:
    assert "gone.toml not found (--config)" in refusal(Path("gone.toml")).message
    assert (
        "gone.toml not found (OMLX_CONFIG)" in refusal(environ={"OMLX_CONFIG": "gone.toml"}).message
    )
    assert load(None, {}, {"OMLX_CONFIG": ""}).source is None
    assert "too long" in refusal(Path("long" * 100)).message


def test_a_file_of_the_working_directory_counts_only_if_it_is_named(home: Path) -> None:
    write(home / "omlx.toml", "[auth]\nadmin = 'key'\n")
    loaded = load(None, {}, {})
    assert (loaded.source, loaded.settings.auth.admin) == (None, "token")
    assert any("omlx.toml is not used" in warning for warning in warnings(loaded))
    named = load(Path("omlx.toml"), {}, {})
    assert named.settings.auth.admin == "key" and not warnings(named)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("[server]\nhost = localhost\n", "line 2, column 8"),
        ("[server]\nport = ", "line 2, column 8"),
        ('[server]\nhost = "a', "line 2, column 10"),
        ("[server]\nport = 1\nport = 2\n", "line 3, column "),
        ("[server\n", "line 1, column 8"),
    ],
)
def test_bad_toml_tells_line_and_column(text: str, where: str, home: Path) -> None:
    path = write(home / "c.toml", text)
    message = refusal(path).message
    assert message.startswith(f"{path}, {where}")
    assert ": invalid TOML: " in message


@pytest.mark.parametrize(
    "text",
    [
        "host = localhost",
        "host = 127.0.0.1",
        'host = "localhost\nport = 1',
        "host = 'localhost",
        'host = "localhost',
        "max_body_bytes = 32MiB",
        "allowed_hosts = [\n  a\n]",
        "host = yes # why",
    ],
)
def test_a_text_without_its_quotes_is_told_that_it_needs_them(text: str, home: Path) -> None:
    assert "texts need quotes" in refusal(write(home / "c.toml", f"[server]\n{text}")).hint


@pytest.mark.parametrize(
    "text",
    [
        "port = 1\nport = 2",
        "port = ",
        "port = # none yet",
        "[server]",
        "[cache",
        "[cache]]",
        "[[cache]",
        "port 8000",
        'allowed_hosts = ["a"',
        'allowed_hosts = ["a",,]',
    ],
)
def test_toml_that_is_wrong_otherwise_is_not(text: str, home: Path) -> None:
    error = refusal(write(home / "c.toml", f"[server]\n{text}"))
    assert (": invalid TOML: " in error.message, error.hint) == (True, "")


def test_an_unreadable_file_is_named(home: Path) -> None:
    path = home / "c.toml"
    path.write_bytes(b"\xff\xfe\x00")
    assert refusal(path).message == f"config file {path} can't be read: it is not UTF-8"


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("server.prot", "server.port"),
        ("sever.port", "server.port"),
        ("server.maxbodybytes", "server.max_body_bytes"),
        ("server.max_batch_size", "scheduler.max_batch_size"),
        ("port", "server.port"),
        ("schedular", "scheduler"),
        ("auth.apikeys", "auth.api_keys"),
        ("model.dirs", "models.dirs"),
        ("zzz.qqq", None),
    ],
)
def test_the_nearest_key_is_named(wrong: str, right: str | None) -> None:
    assert nearest(wrong) == right
    error = refusal(overrides={wrong: "1"})
    assert wrong in error.message
    assert error.hint == (f"did you mean {right}?" if right else SEE_ALL)


@pytest.mark.parametrize("key", KEYS)
def test_a_key_with_a_letter_missing_leads_back_to_it(key: str) -> None:
    assert nearest(key[:-1]) == key


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("[server]\nprot = 1\n", "server.prot"),
        ("[sever]\nport = 1\n", "sever"),
        ("port = 1\n", "port"),
        ("[models.others.x]\nttl = 1\n", "models.others"),
    ],
)
def test_an_unknown_key_in_the_file_names_key_and_file(text: str, name: str, home: Path) -> None:
    path = write(home / "c.toml", text)
    error = refusal(path)
    assert f" {name} (file {path})" in error.message
    assert error.hint.startswith(("did you mean", "`omlx-server config show`"))


def test_a_section_that_is_no_table_is_refused(home: Path) -> None:
    message = refusal(write(home / "c.toml", "server = 1\n")).message
    assert message.startswith("server: expected a table [server]")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("OMLX_SERVER_PORT", "OMLX_SERVER__PORT"),
        ("OMLX_SERVER__PROT", "OMLX_SERVER__PORT"),
        ("OMLX_SEVER__PORT", "OMLX_SERVER__PORT"),
        ("OMLX_AUTH__API_KEY", "OMLX_AUTH__API_KEYS"),
    ],
)
def test_an_unknown_setting_in_the_environment_is_refused(name: str, hint: str) -> None:
    error = refusal(environ={name: "1"})
    assert name in error.message
    assert error.hint == f"did you mean {hint}?"


def test_other_variables_are_left_alone() -> None:
    environ = {"OMLX_DEBUG": "1", "OMLX_API_KEY": "x", "OMLX_VENV": "/v", "SERVER__PORT": "1"}
    assert load(None, {}, environ).settings == Settings()
