"""The service manager of this system: launchd or systemd."""

import os
import sys
from pathlib import Path

from omlx_server.errors import UsageError
from omlx_server.service.launchd import Launchd
from omlx_server.service.systemd import Systemd

Manager = Launchd | Systemd


def manager_here(home: Path, platform: str = sys.platform) -> Manager:
    """Return launchd on macOS, systemd on Linux. Raises UsageError elsewhere."""
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
