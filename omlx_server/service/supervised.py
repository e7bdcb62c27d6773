"""Whether a service manager runs this server and starts it again after a failure."""

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from omlx_server.service.launchd import LABEL
from omlx_server.service.systemd import UNIT

# EX_TEMPFAIL of sysexits.h. Both managers leave a program alone only if it ends with 0.
START_AGAIN = 75
_CGROUP = Path("/proc/self/cgroup")


def is_started_again(environ: Mapping[str, str] = os.environ, cgroup: Path = _CGROUP) -> bool:
    """Return whether this process is the installed service."""
    if environ.get("XPC_SERVICE_NAME", "").startswith(LABEL):  # launchd sets it
        return True
    with suppress(OSError):
        groups = cgroup.read_text(encoding="utf-8").splitlines()
        return "NOTIFY_SOCKET" in environ and any(one.endswith(f"/{UNIT}") for one in groups)
    return False
