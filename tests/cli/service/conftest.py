"""A `systemctl` on the PATH that writes down what it is asked, and an /etc below the home."""

import os
from functools import partial
from pathlib import Path

import pytest

from omlx_server.cli.service import system
from omlx_server.service import managers, systemd
from omlx_server.service.systemd import Systemd

SYSTEMCTL = """#!/bin/sh
echo "$0 $*" | sed "s|.*/||" >> "HOME/said"
case "$*" in
*${SYSTEMCTL_FAILS:-no such word}*) exit 4 ;;
*show*) cat "HOME/shown" ;;
esac
"""


@pytest.fixture(autouse=True)
def systemctl(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """On the PATH; a file with what it was asked."""
    ours = ("HF_", "SSL_", "CURL_", "REQUESTS_")
    for name in [n for n in os.environ if n.startswith(ours) or n.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    programs = home / "programs"
    programs.mkdir()
    for name in ("systemctl", "systemd-run"):
        (programs / name).write_text(SYSTEMCTL.replace("HOME", str(home)))
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    linux = Systemd(home)
    monkeypatch.setattr(system, "manager_here", lambda _home: linux)
    monkeypatch.setattr(systemd, "SYSTEM_UNIT", home / "root" / systemd.UNIT)
    at_boot = partial(managers.system_manager, platform="linux")
    monkeypatch.setattr(system, "system_manager", at_boot)
    show(home, "LoadState=loaded\nActiveState=active\nMainPID=12\nStatusText=serves x\n")
    return home / "said"


def show(home: Path, answer: str) -> None:
    (home / "shown").write_text(answer)
