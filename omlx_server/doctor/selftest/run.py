"""Runs the checks of the self-test in order."""

import logging
from collections.abc import Callable, Iterator
from functools import partial

from omlx_server.compute.bare import matmul_gflops
from omlx_server.compute.hardware import device
from omlx_server.core.crash import Crash, guarded
from omlx_server.doctor import software
from omlx_server.doctor.finding import Finding, fail, in_words, ok, warn
from omlx_server.doctor.probe import device_here
from omlx_server.doctor.selftest import memory, speed
from omlx_server.doctor.selftest.check import REPORT, Beat, Check, SelftestPlan
from omlx_server.doctor.selftest.prefixes import Prefixes
from omlx_server.doctor.selftest.rows import batched
from omlx_server.doctor.selftest.subject import Subject
from omlx_server.doctor.shareable import versions

Progress = Callable[[str, int, int], None]
"""Reports the name of the running check, and as a `Beat` its progress."""

# The reference BLAS in mlx's wheel does 1 or 2, OpenBLAS 30 and more on one core.
_LEAST_GFLOPS = 6.0
_SPEEDS = ("chunks", "1 stream", "8 streams")


def checks(subject: Subject, plan: SelftestPlan, progress: Progress) -> Iterator[Check]:
    yield software_check()
    yield blas_check(device_here())
    yield _load(subject)
    prefixes = Prefixes(subject, plan)
    steps: tuple[tuple[str, Callable[[Beat], Check]], ...] = (
        ("hit: memory", prefixes.memory),
        ("hit: files", prefixes.files),
        ("batch", lambda beat: batched(subject, plan, beat)),
        ("memory", lambda beat: memory.planned(subject, plan, beat)),
        ("chunks", lambda beat: speed.chunks(subject, plan, beat)),
        ("1 stream", lambda beat: speed.decoding(subject, plan, 1, beat)),
        ("8 streams", lambda beat: speed.decoding(subject, plan, 8, beat)),
    )
    for name, check in steps[: None if subject.most_rows > 1 else -1]:
        yield _guarded(name, check, partial(progress, name))
        progress(name, 1, 1)


def _guarded(name: str, check: Callable[[Beat], Check], beat: Beat) -> Check:
    """Run the check; an exception becomes a finding. For a speed it is a warning: the bare loop may
    raise, too."""
    result = guarded(check, beat)
    if not isinstance(result, Crash):
        return result
    problem = warn if name in _SPEEDS else fail
    return Check(problem(name, f"it can't be checked: {result.reason}", REPORT))


def quiet() -> None:
    logging.getLogger("omlx_server").addHandler(logging.NullHandler())


def software_check() -> Check:
    packages = versions()
    words = ", ".join(f"{name} {version}" for name, version in packages.items())
    return Check(ok("mlx", f"computes on the {device.name()}; {words}"), dict(packages))


def blas_check(machine: software.Device) -> Check:
    if not machine.is_cpu:
        return Check(software.blas(machine))
    gflops = matmul_gflops()
    return Check(_blas(machine, gflops), {"blas": machine.blas, "gflops": round(gflops, 1)})


def _blas(machine: software.Device, gflops: float) -> Finding:
    finding = software.blas(machine)
    if machine.blas and gflops < _LEAST_GFLOPS:
        return warn(
            "blas",
            f"{machine.blas} is there, but products of matrices run at {gflops:.1f} GFLOP/s: this "
            "build of MLX computes without it, so prompts are read up to 30 times slower",
            "pip install --force-reinstall mlx[cpu]",
        )
    return finding


def _load(subject: Subject) -> Check:
    nbytes, name = subject.loaded.weight_bytes, subject.located.names[0]
    says = f"{name}: {in_words(nbytes)} of weights, there after {subject.load_seconds:.1f} s"
    figures = {"weight_bytes": nbytes, "seconds": round(subject.load_seconds, 2)}
    return Check(ok("model", says), figures)
