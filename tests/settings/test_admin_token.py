"""The file of the server's own token: who makes it, who reads it, and what becomes of a bad one."""

import os
import stat
import threading
from pathlib import Path

import pytest

from omlx_server.errors import ConfigError
from omlx_server.settings import load
from omlx_server.settings.admin_token import (
    TokenFileError,
    admin_token,
    read_admin_token,
    token_file,
)

MADE = "made-by-somebody-else-1234"
MAKERS = 8
TURNS = 50


def put(text: str) -> Path:
    path = token_file()
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return path


def modes(path: Path) -> list[int]:
    return [stat.S_IMODE(one.stat().st_mode) for one in (path, path.parent)]


def test_it_is_made_once_for_this_user_alone(home: Path) -> None:
    assert read_admin_token() == ""
    made = admin_token()
    assert len(made) >= 32
    assert token_file() == home / ".config" / "omlx_server" / "admin-token"
    assert modes(token_file()) == [0o600, 0o700]
    assert admin_token() == read_admin_token() == made
    assert list(token_file().parent.iterdir()) == [token_file()]


def test_two_homes_have_two_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = admin_token()
    monkeypatch.setenv("HOME", str(tmp_path / "other"))
    assert admin_token() != first


def test_one_that_is_there_stays_and_is_closed_to_others() -> None:
    path = put(f"{MADE}\n")
    path.chmod(0o644)
    assert read_admin_token() == admin_token() == MADE
    assert modes(path)[0] == 0o600


@pytest.mark.parametrize("text", ["", "short", "\0" * 44, "two words of some length", "ä" * 20])
def test_what_is_no_token_is_replaced(text: str) -> None:
    put(text)
    assert read_admin_token() == ""
    made = admin_token()
    assert len(made) >= 32 and made == read_admin_token()


def test_the_variable_wins_and_makes_no_file() -> None:
    environ = {"OMLX_ADMIN_TOKEN": MADE}
    assert admin_token(environ) == read_admin_token(environ) == MADE
    assert not token_file().exists()


def test_a_bad_variable_is_an_error_in_one_line() -> None:
    for find in (admin_token, read_admin_token):
        with pytest.raises(ConfigError, match="OMLX_ADMIN_TOKEN holds no token"):
            find({"OMLX_ADMIN_TOKEN": "with\nlines-and-more-letters"})


def test_the_variable_is_no_unknown_setting() -> None:
    assert load(None, {}, {"OMLX_ADMIN_TOKEN": MADE}).settings.admin.enabled
    with pytest.raises(ConfigError, match="unknown setting OMLX_ADMIN_TOKENS"):
        load(None, {}, {"OMLX_ADMIN_TOKENS": MADE})


def test_nowhere_to_write_is_said(home: Path) -> None:
    (home / ".config").write_text("a file in its place")
    with pytest.raises(TokenFileError, match="admin-token can't be used: "):
        admin_token()
    assert read_admin_token() == ""


def test_a_pipe_in_its_place_makes_nobody_wait() -> None:
    path = token_file()
    path.parent.mkdir(parents=True)
    os.mkfifo(path)
    assert read_admin_token() == ""


def make_at_once(line: threading.Barrier, made: list[str]) -> None:
    line.wait(60)
    made.append(admin_token())


def test_who_makes_one_at_once_ends_with_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads meet at the file as processes do: nothing else is shared."""
    for turn in range(TURNS):
        monkeypatch.setenv("HOME", str(tmp_path / str(turn)))
        line, made = threading.Barrier(MAKERS), list[str]()
        threads = [threading.Thread(target=make_at_once, args=(line, made)) for _ in range(MAKERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(made) == MAKERS
        assert set(made) == {read_admin_token()}
        assert list(token_file().parent.iterdir()) == [token_file()]
