"""The user as whom a service runs that starts at boot: a named one, or an account of its own."""

import grp
import pwd
import sys
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path

from omlx_server.errors import UsageError
from omlx_server.service.steps import RunCommand

# Ids of macOS's role accounts are 200 to 400; Apple takes the lower ones.
_ROLE_IDS = range(399, 300, -1)
_PLACES = {
    "darwin": ("_omlx", Path("/var/db/omlx_server")),
    "linux": ("omlx", Path("/var/lib/omlx_server")),
}


@dataclass(frozen=True, slots=True)
class Account:
    """`is_ours`: made for the service, with a home that holds nothing else. Without a name it is
    whoever logs in."""

    name: str = ""
    home: Path = Path("/")
    is_ours: bool = False
    exists: bool = True
    platform: str = sys.platform

    def make(self) -> list[RunCommand]:
        """Return the steps that make our account and its home; none for somebody else's."""
        if not self.is_ours:
            return []
        create = _create_role if self.platform == "darwin" else _create_system_user
        owner = ("-o", self.name, "-g", self.name)
        home = RunCommand(("install", "-d", "-m", "0700", *owner, str(self.home)))
        return [*([] if self.exists else create(self)), home]

    def remove(self) -> list[RunCommand]:
        if not self.is_ours:
            return []
        account = [RunCommand(("userdel", self.name))]
        if self.platform == "darwin":
            places = (f"/Users/{self.name}", f"/Groups/{self.name}")
            account = [RunCommand(("dscl", ".", "-delete", place)) for place in places]
        return [*(account if self.exists else []), RunCommand(("rm", "-rf", str(self.home)))]


ANYBODY = Account()


def account_of(name: str, platform: str = sys.platform) -> Account:
    """Return the account `name`; if "", our own. Raises UsageError if it can't run a service."""
    our_name, our_home = _PLACES.get(platform, _PLACES["linux"])
    name = name or our_name
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        if name == our_name:
            return Account(name, our_home, is_ours=True, exists=False, platform=platform)
        raise UsageError(
            f"there is no user {name} on this machine",
            hint=f"without --user the service gets an account of its own, {our_name}",
        ) from None
    if entry.pw_uid == 0:
        raise UsageError("the service must not run as root", hint="--user NAME, or leave it out")
    home = Path(entry.pw_dir)
    is_ours = (name, home) == (our_name, our_home)
    return Account(name, home, is_ours=is_ours, exists=True, platform=platform)


def _create_system_user(account: Account) -> list[RunCommand]:
    shell = ("--shell", "/usr/sbin/nologin")
    home = ("--home-dir", str(account.home), "--no-create-home")
    return [RunCommand(("useradd", "--system", "--user-group", *home, *shell, account.name))]


def _create_role(account: Account) -> list[RunCommand]:
    users = {entry.pw_uid for entry in pwd.getpwall()}
    number = str(free_id(users | {entry.gr_gid for entry in grp.getgrall()}))
    group, user = f"/Groups/{account.name}", f"/Users/{account.name}"
    values = (
        (group, "PrimaryGroupID", number),
        (user, "UniqueID", number),
        (user, "PrimaryGroupID", number),
        (user, "NFSHomeDirectory", str(account.home)),
        (user, "UserShell", "/usr/bin/false"),
        (user, "RealName", "omlx-server"),
        (user, "IsHidden", "1"),
        (user, "Password", "*"),
    )
    return [RunCommand(("dscl", ".", "-create", *value)) for value in values]


def free_id(taken: Container[int]) -> int:
    """Raises UsageError if there is none for a role account."""
    number = next((number for number in _ROLE_IDS if number not in taken), None)
    if number is None:
        raise UsageError("no id is free for an account", hint="--user NAME takes one that is there")
    return number
