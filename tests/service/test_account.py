"""The user of a service that starts at boot: named, or made for it. No account is touched."""

import os
import pwd
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from omlx_server.errors import UsageError
from omlx_server.service import account
from omlx_server.service.account import Account, account_of, free_id

GIVEN = ("_omlx", Path("/var/db/omlx_server"))
Entry = Callable[[str], pwd.struct_passwd]


def entries(name: str, uid: int, home: str) -> Entry:
    """A machine with this user alone."""

    def getpwnam(asked: str) -> pwd.struct_passwd:
        if asked != name:
            raise KeyError(asked)
        return pwd.struct_passwd((name, "*", uid, uid, "", home, "/bin/sh"))

    return getpwnam


def commands(given: Account) -> list[str]:
    return [" ".join(step.command) for step in given.make()]


def test_an_account_of_its_own_is_made_on_linux() -> None:
    given = Account("omlx", Path("/var/lib/omlx_server"), True, False, "linux")
    assert commands(given) == [
        "useradd --system --user-group --home-dir /var/lib/omlx_server --no-create-home "
        "--shell /usr/sbin/nologin omlx",
        "install -d -m 0700 -o omlx -g omlx /var/lib/omlx_server",
    ]


def test_a_hidden_role_account_is_made_on_a_mac(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = pwd.struct_passwd(("_other", "*", 399, 399, "", "/", "/usr/bin/false"))
    monkeypatch.setattr(pwd, "getpwall", lambda: [taken])
    assert commands(Account(*GIVEN, True, False, "darwin")) == [
        "dscl . -create /Groups/_omlx PrimaryGroupID 398",
        "dscl . -create /Users/_omlx UniqueID 398",
        "dscl . -create /Users/_omlx PrimaryGroupID 398",
        "dscl . -create /Users/_omlx NFSHomeDirectory /var/db/omlx_server",
        "dscl . -create /Users/_omlx UserShell /usr/bin/false",
        "dscl . -create /Users/_omlx RealName omlx-server",
        "dscl . -create /Users/_omlx IsHidden 1",
        "dscl . -create /Users/_omlx Password *",
        "install -d -m 0700 -o _omlx -g _omlx /var/db/omlx_server",
    ]


def test_an_account_that_is_there_is_not_made_again() -> None:
    assert commands(Account(*GIVEN, True, True, "darwin")) == [
        "install -d -m 0700 -o _omlx -g _omlx /var/db/omlx_server"
    ]


def test_nothing_of_a_person_is_made_or_removed() -> None:
    ann = Account("ann", Path("/Users/ann"), False, True)
    assert (ann.make(), ann.remove()) == ([], [])


@pytest.mark.parametrize(
    ("platform", "removed"),
    [
        ("darwin", ["dscl . -delete /Users/_omlx", "dscl . -delete /Groups/_omlx"]),
        ("linux", ["userdel _omlx"]),
    ],
)
def test_what_was_made_is_removed(platform: str, removed: list[str]) -> None:
    steps = Account(*GIVEN, True, True, platform).remove()
    assert [" ".join(step.command) for step in steps] == [*removed, "rm -rf /var/db/omlx_server"]


def test_only_an_account_with_its_own_home_is_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody may be called omlx: nothing of theirs may be removed."""
    for home, is_ours in (("/var/lib/omlx_server", True), ("/home/omlx", False)):
        monkeypatch.setattr(pwd, "getpwnam", entries("omlx", 990, home))
        given = account_of("", "linux")
        assert (given.home, given.is_ours, given.exists) == (Path(home), is_ours, True)


def test_who_can_not_run_a_service_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="there is no user nobody-of-this-name"):
        account_of("nobody-of-this-name")
    monkeypatch.setattr(pwd, "getpwnam", entries("toor", 0, "/root"))
    with pytest.raises(UsageError, match="must not run as root"):
        account_of("toor")


def test_a_role_account_without_a_free_id_is_one_line() -> None:
    assert free_id({399, 397}) == 398
    with pytest.raises(UsageError, match="no id is free"):
        free_id(range(200, 401))


@pytest.mark.skipif(sys.platform == "win32", reason="no accounts")
def test_the_user_of_this_process_can_be_named() -> None:
    entry = pwd.getpwuid(os.getuid())
    if entry.pw_uid:
        assert account_of(entry.pw_name).home == Path(entry.pw_dir)
    assert account_of("").name in {name for name, _ in account._PLACES.values()}
