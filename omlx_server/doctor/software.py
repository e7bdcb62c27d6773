"""Checks of Python, MLX, its BLAS, the background service, and client programs."""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from omlx_server.doctor.finding import Finding, fail, ok, warn

_OLDEST = (3, 11)
_NEWEST_TESTED = (3, 14)
_CLIENTS_PAGE = "docs/clients.md"


@dataclass(frozen=True, slots=True)
class Device:
    """The facts of `probe`. `ram` and `working_set` are bytes; `blas` is None without OpenBLAS."""

    device: str
    is_cpu: bool
    blas: str | None
    ram: int
    working_set: int | None


def python(version: tuple[int, int, int], where: str) -> Finding:
    text = f"{'.'.join(map(str, version))} in {where}"
    if version[:2] < _OLDEST:
        return fail("python", text, "Python 3.11 or newer is needed: make the environment anew")
    if version[:2] > _NEWEST_TESTED:
        return warn("python", text, "newer than what is tested; if MLX fails, take Python 3.13")
    return ok("python", text)


def service(state: str, last_exit: int | None, user: str = "") -> Finding:
    """Return the finding on a service's state, "" without a manager; at boot a `user` runs it."""
    if not state:
        return ok("service", "there is no service manager here; `omlx-server serve` needs none")
    if state == "failed":
        code = "" if last_exit is None else f" (exit code {last_exit})"
        return warn("service", f"it has failed{code}", "omlx-server service logs says why")
    return ok("service", f"{state}, at boot, as {user}" if user else state)


def read_device(code: int, out: str) -> Device | None:
    """Return the device in the probe's output; None if it failed."""
    try:
        return Device(**json.loads(out)) if code == 0 else None
    except (ValueError, TypeError):
        return None


def mlx(device: Device | None, code: int, error_text: str) -> Finding:
    if device is not None:
        return ok("mlx", f"computes on the {device.device}")
    if code < 0:
        fix = "this wheel of mlx does not suit the processor: pip install --force-reinstall mlx"
        return fail("mlx", f"crashed when it was loaded (signal {-code})", fix)
    last = (error_text.strip().splitlines() or ["it says nothing"])[-1]
    return fail("mlx", f"can't be loaded: {last}", "install omlx-server anew: docs/install.md")


def blas(device: Device) -> Finding:
    if not device.is_cpu:
        return ok("blas", "not needed: MLX computes on a GPU")
    if device.blas:
        return ok("blas", device.blas)
    return warn(
        "blas",
        "OpenBLAS was not found, so prompts are read up to 30 times slower",
        "apt-get install libopenblas0-pthread",
    )


def clients(known: Collection[str], paths: Mapping[str, str]) -> Finding:
    if not paths:
        return ok("clients", f"none of {', '.join(known)} is on the PATH ({_CLIENTS_PAGE})")
    names = ", ".join(name for name in known if name in paths)
    return ok("clients", f"{names}; `omlx-server launch {next(iter(paths))}` starts one")
