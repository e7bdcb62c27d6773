"""Which browser the tests of the page use, or why there is none."""

import os
import shutil
from pathlib import Path

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_ON_A_MAC = (
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
)
MISSING = (
    "no Chromium: scripts/test installs it on Debian and Ubuntu where it may; elsewhere install "
    "Chromium or Chrome, or name one in OMLX_CHROMIUM"
)


def chromium() -> str | None:
    """The path of a Chromium or Chrome; None where there is none."""
    given = os.environ.get("OMLX_CHROMIUM")
    if given:
        return given
    found = (shutil.which(name) for name in _NAMES)
    on_a_mac = (path for path in _ON_A_MAC if Path(path).exists())
    return next(filter(None, (*found, *on_a_mac)), None)
