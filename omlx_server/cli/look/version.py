"""`omlx-server version`: prints the versions that a bug report needs; imports no mlx."""

import platform
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of

from omlx_server import __version__


def run() -> int:
    print(f"omlx-server {__version__}")
    print(f"python {platform.python_version()} on {platform.system()} {platform.machine()}")
    for package in ("mlx", "mlx-lm"):
        print(f"{package} {_installed(package)}")
    return 0


def _installed(package: str) -> str:
    try:
        return version_of(package)
    except PackageNotFoundError:
        return "not installed"
