"""The service managers of this system, launchd or systemd: for services of one user, which start
at login, and for the one of the system, which starts at boot."""

import os
import sys
from pathlib import Path
from pwd import struct_passwd

from omlx_server.errors import UsageError
from omlx_server.service import launchd, systemd
from omlx_server.service.account import account_of
from omlx_server.service.launchd import Launchd
from omlx_server.service.systemd import Systemd

Manager = Launchd | Systemd


def manager_here(home: Path, platform: str = sys.platform) -> Manager:
    """Return this user's launchd on macOS, systemd on Linux. Raises UsageError elsewhere."""
    match platform:
        case "darwin":
            return Launchd(home, os.getuid())
        case "linux":
            return Systemd(home)
        case _:
            raise UsageError(
                f"there is no service manager on {platform} that omlx-server knows",
                hint="launchd (macOS) and systemd (Linux) it knows; elsewhere run it by hand",
            )


def system_manager(user: str, platform: str = sys.platform) -> Manager:
    """Return the manager of the service that starts at boot as `user`; if "", as the user of the
    installed one, else as our own. Raises UsageError for a user who can't."""
    manager_here(Path("/"), platform)
    kind = launchd if platform == "darwin" else systemd
    file = launchd.DAEMON if platform == "darwin" else systemd.SYSTEM_UNIT
    if not user and file.exists():
        user = kind.user_in(file.read_text(encoding="utf-8"))
    account = account_of(user, platform)
    if platform == "darwin":
        return Launchd(account.home, 0, account)
    return Systemd(account.home, account)


def login_manager(entry: struct_passwd, platform: str = sys.platform) -> Manager:
    """Return the manager of another user's own service, for root."""
    home = Path(entry.pw_dir)
    if platform == "darwin":
        return Launchd(home, entry.pw_uid)
    return Systemd(home, login=entry.pw_name)
