"""Settings: which layer wins, what is refused and in which words, and the example file."""

import itertools
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omlx_server import settings
from omlx_server.errors import ConfigError
from omlx_server.settings import KEYS, Settings, layers, load, nearest, parse_size
from omlx_server.settings.schema import json_schema
from omlx_server.settings.values import plain

EXAMPLE = Path(__file__).parents[1] / "config" / "omlx.example.toml"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith("OMLX_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def refusal(
    config: Path | None = None,
    overrides: Mapping[str, str] = MappingProxyType({}),
    environ: Mapping[str, str] = MappingProxyType({}),
) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load(config, overrides, environ)
    assert "\n" not in caught.value.message + caught.value.hint
    return caught.value


def value_of(loaded: settings.Loaded, dotted: str) -> object:
    section, key = dotted.split(".")
    return dict(dict(loaded.settings)[section])[key]


# --- Precedence and origins ----------------------------------------------------------------------

SAMPLES = {
    "server.host": ('"::1"', "::1", "localhost", "127.0.0.2"),
    "server.port": ("1", 1, "2", "3"),
    "server.max_body_bytes": ('"1MiB"', 2**20, "2MiB", "3000000"),
    "server.sse_ping_seconds": ("1.5", 1.5, "2", "3"),
    "auth.api_keys": ('["a"]', None, "b,c", '["d"]'),
    "models.dirs": ('["/a"]', (Path("/a"),), "/b,/c", '["/d"]'),
    "models.use_hf_cache": ("false", False, "true", "no"),
    "scheduler.max_queue": ("5", 5, "6", "7"),
    "logging.level": ('"debug"', "debug", "error", "warning"),
}


@pytest.mark.parametrize("key", SAMPLES)
@pytest.mark.parametrize("layers", [*itertools.product([False, True], repeat=3)])
def test_the_strongest_layer_wins_for_each_key(
    key: str, layers: tuple[bool, bool, bool], home: Path
) -> None:
    in_file, from_file, from_env, from_flag = SAMPLES[key]
    section, name = key.split(".")
    env_name = f"OMLX_{section.upper()}__{name.upper()}"
    has_file, has_env, has_flag = layers
    path = write(home / "c.toml", f"[{section}]\n{name} = {in_file}\n" if has_file else "")
    env = {env_name: from_env} if has_env else {}
    flag = {key: from_flag} if has_flag else {}
    loaded = load(path, flag, env)

    only_winner = (
        load(None, flag, {})
        if has_flag
        else load(None, {key: from_env}, {})
        if has_env
        else load(path, {}, {})
    )
    origin = "flag" if has_flag else f"env {env_name}" if has_env else f"file {path}"
    assert value_of(loaded, key) == value_of(only_winner, key)
    assert loaded.origins[key] == (origin if any(layers) else "default")
    assert all(loaded.origins[other] == "default" for other in KEYS if other != key)
    if has_file and from_file is not None and not (has_env or has_flag):
        assert value_of(loaded, key) == from_file


def test_layers_are_merged_key_by_key_not_table_by_table(home: Path) -> None:
    path = write(home / "c.toml", "[server]\nport = 1\nmax_body_bytes = 5000\n")
    server = load(path, {"server.host": "::1"}, {"OMLX_SERVER__PORT": "2"}).settings.server
    assert (server.host, server.port, server.max_body_bytes) == ("::1", 2, 5000)


def test_the_real_environment_is_read_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMLX_SERVER__PORT", "77")
    assert load().settings.server.port == 77


# --- Finding the file ----------------------------------------------------------------------------


def test_the_file_is_looked_for_in_order(home: Path) -> None:
    assert load(None, {}, {}).source is None
    user = write(home / ".config/omlx_server/config.toml", "[server]\nport = 4\n")
    assert load(None, {}, {}).source == user
    write(home / "omlx.toml", "[server]\nport = 3\n")
    assert load(None, {}, {}).settings.server.port == 3
    named = write(home / "by-env.toml", "[server]\nport = 2\n")
    assert load(None, {}, {"OMLX_CONFIG": str(named)}).settings.server.port == 2
    flag = write(home / "by-flag.toml", "[server]\nport = 1\n")
    assert load(flag, {}, {"OMLX_CONFIG": str(named)}).settings.server.port == 1


def test_a_named_file_must_exist(home: Path) -> None:
    write(home / "omlx.toml", "")
    assert "gone.toml not found (--config)" in refusal(Path("gone.toml")).message
    assert (
        "gone.toml not found (OMLX_CONFIG)" in refusal(environ={"OMLX_CONFIG": "gone.toml"}).message
    )
    assert load(None, {}, {"OMLX_CONFIG": ""}).source == Path("omlx.toml")


# --- Refusals ------------------------------------------------------------------------------------


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
        "max_body_bytes = 8MiB",
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
        ("server.max_tokens", "sampling.max_tokens"),
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
    assert error.hint == (f"did you mean {right}?" if right else layers.SEE_ALL)


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


BAD_TEXTS = [
    ("server.port", ["", "x", "1.5", "-1", "65536", "true", "0x50", "1e3", "９", "9" * 5000]),
    ("server.host", ["", "a b", "http://x", "127.0.0.1\n"]),
    ("server.max_body_bytes", ["", "0", "1023", "2GiB", "8Mi", "-1MiB", "MiB", "1.5", "9" * 400]),
    ("server.request_timeout_seconds", ["-1", "nan", "inf", "1e9", "86401", "soon"]),
    ("server.sse_ping_seconds", ["0", "301"]),
    ("server.allowed_hosts", ["a/b", "[1]", '["a", null]', '[["a"]]', "[", "a,,b"]),
    ("auth.api_keys", ["two words", "[1]", "[", "kéy", '[""]', "[" * 20000]),
    ("models.dirs", ["", "[]", "[1]", '[""]', "[", "/m\0"]),
    ("cache.cold_dir", ["", "\0"]),
    ("models.use_hf_cache", ["", "2", "maybe", "on"]),
    ("scheduler.max_batch_size", ["0", "257"]),
    ("scheduler.max_queue", ["0", "100001"]),
    ("scheduler.prefill_chunk_tokens", ["0", "32", "100", "8256"]),
    ("scheduler.max_batched_tokens", ["0", "65537"]),
    ("scheduler.decode_share", ["-0.1", "0.91", "1", "half"]),
    ("memory.limit", ["0", "0GB", "-1GB", "most", "8Mi", "2000TiB", ""]),
    ("memory.reserve", ["-1GB", "some", ""]),
    ("memory.activation_reserve", ["-1", "AUTO"]),
    ("sampling.max_tokens", ["-1", "10000001"]),
    ("logging.level", ["", "INFO", "trace"]),
    ("logging.format", ["", "AUTO", "text"]),
    ("logging.file", ["\0", "/log\0"]),
    ("tracing.enabled", ["", "2", "maybe"]),
]


@pytest.mark.parametrize(
    ("key", "text"),
    [(key, text) for key, texts in BAD_TEXTS for text in texts],
    ids=lambda text: ascii(text[:20]),
)
def test_a_bad_text_names_key_expectation_and_origin(key: str, text: str) -> None:
    name = layers.env_name(key)
    for message, origin in (
        (refusal(overrides={key: text}).message, "flag"),
        (refusal(environ={name: text}).message, f"env {name}"),
    ):
        assert message.startswith(f"{key}: expected {settings.expected(key)}")
        assert message.endswith(f"({origin})")
        assert len(message) < 250


@pytest.mark.parametrize(
    ("key", "toml"),
    [
        ("server.port", '"8000"'),
        ("server.port", "true"),
        ("server.port", "8000.5"),
        ("server.port", "[8000]"),
        ("server.port", "2024-01-01"),
        ("server.port", "99999999999999999999"),
        ("server.host", "1"),
        ("server.max_body_bytes", "true"),
        ("server.max_body_bytes", "8388608.5"),
        ("server.request_timeout_seconds", "nan"),
        ("server.request_timeout_seconds", "inf"),
        ("server.request_timeout_seconds", "true"),
        ("server.request_timeout_seconds", '"1"'),
        ("server.allowed_hosts", '"localhost"'),
        ("auth.api_keys", '"key"'),
        ("auth.api_keys", "{a = 1}"),
        ("models.dirs", '"~"'),
        ("models.use_hf_cache", "1"),
        ("models.use_hf_cache", '"true"'),
        ("models.default", "false"),
        ("scheduler.max_batch_size", "inf"),
        ("scheduler.max_batch_size", "1e300"),
        ("server.port", "70000.0"),
        ("server.host", "1.0"),
        ("models.use_hf_cache", "1.0"),
        ("kv_cache.group_size", "64.5"),
        ("kv_cache.group_size", "48.0"),
        ("models.overrides", "{ m = { kv_cache = { group_size = 64.5 } } }"),
        ("models.overrides", "{ m = { kv_cache = { group_size = true } } }"),
        ("models.overrides", "{ m = 1.0 }"),
        ("logging.level", "1"),
    ],
)
def test_types_in_the_file_are_strict(key: str, toml: str, home: Path) -> None:
    section, name = key.split(".")
    path = write(home / "c.toml", f"[{section}]\n{name} = {toml}\n")
    message = refusal(path).message
    assert message.startswith(key) and ": expected " in message
    assert message.endswith(f"(file {path})")
    with pytest.raises(ValueError):
        Settings.of(tomllib.loads(path.read_text()))


WHOLE = [
    ("server.port", "8000.0", 8000),
    ("server.max_body_bytes", "8388608.0", 2**23),
    ("scheduler.max_batch_size", "8.0", 8),
    ("scheduler.prefill_chunk_tokens", "512.0", 512),
    ("cache.hot_cache_max_bytes", "-0.0", 0),
    ("memory.limit", "1e9", 10**9),
    ("cache.block_tokens", "64.0", 64),
    ("kv_cache.group_size", "64.0", 64),
]


@pytest.mark.parametrize(("key", "toml", "value"), WHOLE)
def test_a_number_without_a_fraction_is_a_whole_one(
    key: str, toml: str, value: int, home: Path
) -> None:
    section, name = key.split(".")
    path = write(home / "c.toml", f"[{section}]\n{name} = {toml}\n")
    found = load(path, {}, {})
    assert repr(value_of(found, key)) == repr(value)
    again = Settings.of(tomllib.loads(path.read_text()))
    assert getattr(getattr(again, section), name) == value
    # Editors check by the schema, which must say the same.
    schema = jsonschema.Draft202012Validator(json_schema())
    assert schema.is_valid(tomllib.loads(path.read_text()))


def test_the_same_for_a_flag_and_for_what_a_model_has_otherwise(home: Path) -> None:
    found = load(None, {"kv_cache.group_size": "32.0"}, {"OMLX_SERVER__PORT": "9000.0"}).settings
    assert repr((found.kv_cache.group_size, found.server.port)) == "(32, 9000)"
    text = """
        [models.overrides.m]
        context_length = 4096.0
        sampling = { top_k = 5.0, temperature = 1.0 }
        kv_cache = { group_size = 64.0 }
        chat_template_kwargs = { thinking_budget = 1.0 }
    """
    own = load(write(home / "c.toml", text), {}, {}).settings.models.overrides["m"]
    assert (
        repr((own.context_length, own.sampling.top_k, own.kv_cache.group_size)) == "(4096, 5, 64)"
    )
    # A template prints it, so it stays.
    assert repr((own.sampling.temperature, own.chat_template_kwargs["thinking_budget"])) == (
        "(1.0, 1.0)"
    )


@given(key=st.sampled_from(KEYS), text=st.text(max_size=30))
def test_any_text_is_a_value_or_a_refusal_that_names_the_key(key: str, text: str) -> None:
    try:
        load(None, {key: text}, {})
    except ConfigError as error:
        assert key in error.message or "home directory" in error.message


def test_settings_can_not_be_changed() -> None:
    with pytest.raises(AttributeError):
        Settings().server.port = 1  # type: ignore[misc]


def test_who_has_no_home_can_name_every_directory(home: Path) -> None:
    """As a container does with a user that it does not know."""
    file = write(
        home / "c.toml",
        '[models]\ndirs = ["/m"]\n[cache]\ncold_dir = "/c"\n[responses]\ndirectory = "/r"\n',
    )
    told = no_home("config", "show", "--config", str(file))
    assert told.returncode == 0, told.stderr
    assert 'cold_dir = "/c"' in told.stdout
    assert no_home("config", "schema").returncode == 0
    refused = no_home("config", "show")
    assert (refused.returncode, "no such home directory" in refused.stderr) == (1, True)


def no_home(*command: str) -> subprocess.CompletedProcess[str]:
    """The program, for somebody of whom the system knows nothing."""
    code = (
        "import os, pwd\n"
        "def unknown(*_): raise KeyError\n"
        "pwd.getpwuid = unknown\n"
        "from omlx_server.__main__ import main\n"
        "main()"
    )
    environ = {k: v for k, v in os.environ.items() if k != "HOME"}
    line = [sys.executable, "-c", code, *command]
    return subprocess.run(line, env=environ, capture_output=True, text=True)


def test_directories_start_at_home_and_an_unknown_home_is_refused(home: Path) -> None:
    assert load(None, {}, {}).settings.models.dirs == (home / ".cache/omlx_server/models",)
    assert load(None, {"models.dirs": "~/m, /n"}, {}).settings.models.dirs == (
        home / "m",
        Path("/n"),
    )
    assert "home directory" in refusal(overrides={"models.dirs": "~no-such-user-/m"}).message


# --- Sizes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("8388608", 8388608),
        ("8MiB", 8 * 2**20),
        ("8 MiB", 8 * 2**20),
        ("8mib", 8 * 2**20),
        ("8MB", 8_000_000),
        ("1.5KiB", 1536),
        ("20GB", 20 * 10**9),
        ("1TiB", 2**40),
        ("5B", 5),
    ],
)
def test_sizes_are_read_with_their_unit(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("value", ["8M", "MiB", "1e6", "-1B", "", "1..5B", None, 5, True])
def test_what_is_no_size_is_left_for_the_integer_check(value: object) -> None:
    assert parse_size(value) is value


_SIZES = st.builds(
    lambda count, base, power: count * base**power,
    st.integers(0, 1000),
    st.sampled_from((1000, 1024)),
    st.integers(0, 4),
)


@given(_SIZES | st.integers(0, 2**45))
def test_a_written_size_reads_back_the_same(size: int) -> None:
    assert parse_size(settings.format_size(size)) == size


@pytest.mark.parametrize(
    "text",
    ["0B", "1B", "1000B", "50GB", "1500MB", "2TB", "20MB", "1KiB", "8MiB", "3GiB", "1000GiB"],
)
def test_a_size_is_shown_as_people_write_it(text: str) -> None:
    size = parse_size(text)
    assert isinstance(size, int)
    assert settings.format_size(size) == text


def test_a_limit_is_more_than_nothing_and_may_be_too_little() -> None:
    """How much is too little depends on the model."""
    message = refusal(overrides={"memory.limit": "0"}).message
    assert message == (
        'memory.limit: expected "auto", or bytes or a size above 0 like "8GiB", not "0" (flag)'
    )
    memory = load(None, {"memory.limit": "1KB", "memory.reserve": "0"}, {}).settings.memory
    assert (memory.limit, memory.reserve, memory.activation_reserve) == (1000, 0, "auto")


# --- Rules over several keys ---------------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost", "LOCALHOST"])
def test_loopback_needs_no_key(host: str) -> None:
    assert load(None, {"server.host": host}, {}).settings.server.host == host


@pytest.mark.parametrize(
    "host",
    ["0.0.0.0", "::", "192.168.1.5", "::ffff:0.0.0.0", "example.org", "0", "localhost.evil.org"],
)
def test_another_host_refuses_to_start_without_a_key(host: str, home: Path) -> None:
    error = refusal(overrides={"server.host": host})
    assert host in error.message
    assert "auth.api_keys" in error.message + error.hint
    refusal(overrides={"server.host": host, "auth.api_keys": ""})
    refusal(write(home / "c.toml", f'[server]\nhost = "{host}"\n'))
    with pytest.raises(ConfigError):
        Settings.of({"server": {"host": host}})
    load(None, {"server.host": host, "auth.api_keys": "key"}, {})


def test_a_chunk_size_is_a_number_or_left_to_the_device() -> None:
    assert load(None, {}, {}).settings.scheduler.prefill_chunk_tokens == "auto"
    chosen = load(None, {"scheduler.prefill_chunk_tokens": " 1024 "}, {}).settings.scheduler
    assert chosen.prefill_chunk_tokens == 1024
    again = load(None, {"scheduler.prefill_chunk_tokens": "auto"}, {}).settings.scheduler
    assert again.prefill_chunk_tokens == "auto"


def test_a_step_must_hold_a_chunk_and_every_row() -> None:
    error = refusal(overrides={"scheduler.prefill_chunk_tokens": "4096"})
    assert "max_batched_tokens (2048)" in error.message
    refusal(
        overrides={"scheduler.max_batched_tokens": "448", "scheduler.prefill_chunk_tokens": "512"}
    )
    narrow = {"scheduler.max_batched_tokens": "64", "scheduler.prefill_chunk_tokens": "64"}
    refusal(overrides=narrow | {"scheduler.max_batch_size": "65"})
    load(None, narrow | {"scheduler.max_batch_size": "64"}, {})


# --- Secrets -------------------------------------------------------------------------------------


def test_keys_never_appear_in_a_repr_or_a_message(home: Path) -> None:
    loaded = load(None, {"auth.api_keys": "hunter2"}, {})
    assert "hunter2" not in repr(loaded) + str(loaded) + json.dumps(
        [plain(value_of(loaded, key)) for key in KEYS]
    )
    assert loaded.settings.auth.api_keys[0].reveal() == "hunter2"
    for bad in ("hunter2 x", '["hunter2", 1]', '["hunter2"'):
        assert "hunter2" not in refusal(overrides={"auth.api_keys": bad}).message
    path = write(home / "c.toml", '[auth]\napi_keys = "hunter2"\n')
    assert "hunter2" not in refusal(path).message
    path = write(home / "c.toml", '[cache]\nremote = ["redis://:hunter2@h/0"]\n')
    assert "hunter2" not in refusal(path).message


# --- The example file ----------------------------------------------------------------------------


def test_the_example_has_every_key_with_its_default_and_no_other() -> None:
    table = tomllib.loads(EXAMPLE.read_text())
    listed = [f"{section}.{key}" for section in table for key in table[section]]
    assert listed == list(KEYS)
    loaded = load(EXAMPLE, {}, {})
    assert loaded.settings == Settings()
    assert set(loaded.origins.values()) == {f"file {EXAMPLE}"}


def test_the_example_explains_every_key() -> None:
    lines = EXAMPLE.read_text().splitlines()
    for before, line in itertools.pairwise(lines):
        assert " = " not in line.partition("#")[0] or before.startswith("# "), line


# --- KV caches, per model ------------------------------------------------------------------------


def test_a_model_has_what_its_override_says_and_the_rest_from_the_section(home: Path) -> None:
    text = """
        [kv_cache]
        scheme = "affine"
        bits = 8
        [models.overrides."org/a".kv_cache]
        scheme = "turboquant"
        bits = 3.5
        [models.overrides.b.kv_cache]
        group_size = 32
    """
    found = load(write(home / "c.toml", text), {}, {}).settings
    shapes = {
        name: (kv.scheme, kv.bits, kv.group_size)
        for name in ("org/a", "b", "c")
        for kv in [found.kv_cache_of(["starter", name])]
    }
    assert shapes == {
        "org/a": ("turboquant", 3.5, 64),
        "b": ("affine", 8, 32),
        "c": ("affine", 8, 64),
    }


def test_a_flag_that_does_not_go_with_an_override_names_the_model(home: Path) -> None:
    path = write(home / "c.toml", '[models.overrides.m.kv_cache]\nscheme="turboquant"\nbits=2.5\n')
    refused = refusal(path, {"kv_cache.scheme": "affine"})
    assert refused.message.startswith(
        "models.overrides of m: kv_cache.scheme affine can't have 2.5"
    )


def test_a_flag_wins_over_an_override(home: Path) -> None:
    text = '[models.overrides.a.kv_cache]\nscheme = "turboquant"\nbits = 3.5\n'
    path = write(home / "c.toml", text)
    kv = load(path, {"kv_cache.bits": "8"}, {}).settings.kv_cache_of(["a"])
    assert (kv.scheme, kv.bits) == ("turboquant", 8)
    kv = load(path, {"kv_cache.scheme": "none"}, {}).settings.kv_cache_of(["a"])
    assert kv.scheme == "none"


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"kv_cache.scheme": "affine", "kv_cache.bits": "3.5"}, "affine can't have 3.5 bits"),
        ({"kv_cache.scheme": "turboquant", "kv_cache.bits": "6"}, "turboquant can't have 6 bits"),
        ({"kv_cache.group_size": "48"}, "expected 32, 64 or 128"),
        ({"kv_cache.scheme": "int4"}, "one of none, affine, rotated, turboquant"),
        ({"models.overrides": '{"a": {"kv_cache": {"scheme": "affine", "bits": 5}}}'}, "5 bits"),
        ({"models.overrides": '{"a": {"kv_cash": {}}}'}, "unknown key models.overrides.a.kv_cash"),
        ({"models.overrides": "affine"}, "expected tables by model name"),
    ],
)
def test_a_kv_cache_that_can_not_be(overrides: dict[str, str], words: str) -> None:
    assert words in refusal(overrides=overrides).message
