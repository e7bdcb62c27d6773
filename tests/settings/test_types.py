"""Sizes and directories: how they are written, and what they mean."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from omlx_server.errors import ConfigError
from omlx_server.settings import KEYS, edit, load
from omlx_server.settings.layers import env_name
from omlx_server.settings.types import parse_size
from omlx_server.settings.values import is_size
from tests.settings.reading import refusal, write


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
    assert load(None, {"models.dirs": "~/m, /n"}, {}).settings.models.dirs[:2] == (
        home / "m",
        Path("/n"),
    )
    assert "home directory" in refusal(overrides={"models.dirs": "~no-such-user-/m"}).message


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


def test_a_limit_is_more_than_nothing_and_may_be_too_little() -> None:
    """How much is too little depends on the model."""
    message = refusal(overrides={"memory.limit": "0"}).message
    assert message == (
        'memory.limit: expected "auto", or a size above 0 with its unit, like "8GiB", '
        'not "0" (flag)'
    )
    memory = load(None, {"memory.limit": "1KB", "memory.reserve": "0"}, {}).settings.memory
    assert (memory.limit, memory.reserve, memory.activation_reserve) == (1000, 0, "auto")


SIZES = [key for key in KEYS if is_size(key)]


@pytest.mark.parametrize("key", SIZES)
@pytest.mark.parametrize("number", ["3", "999999", "0.5"])
def test_a_small_size_needs_its_unit_wherever_it_is_from(key: str, number: str, home: Path) -> None:
    section, name = key.split(".")
    file = write(home / "c.toml", f"[{section}]\n{name} = {number}\n")
    quoted = write(home / "d.toml", f"[{section}]\n{name} = '{number}'\n")
    errors = [refusal(file), refusal(quoted), refusal(overrides={key: number})]
    errors.append(refusal(environ={env_name(key): number}))
    with pytest.raises(ConfigError) as caught:
        edit.set_key(home / "new.toml", key, number)
    with pytest.raises(ConfigError):
        edit.check_value(key, number)
    for error in (*errors, caught.value):
        assert error.message.startswith(f"{key}: expected ") and "unit" in error.message
        assert error.hint.startswith(f"write {number}")
    assert not (home / "new.toml").exists()


@pytest.mark.parametrize(
    ("key", "number", "hint"),
    [
        ("memory.limit", "3", "write 3GB or 3B"),
        ("memory.limit", "4096", "write 4096MB or 4096B"),
        ("server.max_body_bytes", "32", "write 32MB"),
        ("server.max_header_bytes", "16384", "write 16384B"),
        ("cache.cold_cache_max_bytes", "1.5", "write 1.5GB or 1.5B"),
    ],
)
def test_the_hint_has_the_likely_meaning(key: str, number: str, hint: str) -> None:
    assert refusal(overrides={key: number}).hint == hint
    for text in hint.removeprefix("write ").split(" or "):
        load(None, {key: text}, {})


@pytest.mark.parametrize("text", ["0", "0B", "1000000", "3B", " 3 GB "])
def test_a_large_size_and_none_need_no_unit(text: str) -> None:
    load(None, {"cache.cold_cache_max_bytes": text}, {})


def test_the_own_directory_of_models_stays_whatever_is_set(home: Path) -> None:
    own = home / ".cache/omlx_server/models"
    file = write(home / "c.toml", "[models]\ndirs = ['~/a', '~/b']\n")
    assert load(file, {}, {}).settings.models.dirs == (home / "a", home / "b", own)
    for texts in ("~/a", f"{own},~/a", "~/.cache/omlx_server/models/,~/a"):
        dirs = load(None, {"models.dirs": texts}, {}).settings.models.dirs
        assert sorted(dirs) == sorted([own, home / "a"])
    assert "expected a list" in refusal(overrides={"models.dirs": "[]"}).message
