"""Runs the checks of the self-test in order, and makes the report to share."""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from omlx_server.compute.bare import matmul_gflops
from omlx_server.compute.hardware import device
from omlx_server.core.crash import Crash, guarded
from omlx_server.doctor import software
from omlx_server.doctor.finding import fail, in_words, ok, warn
from omlx_server.doctor.probe import device_here
from omlx_server.doctor.selftest import memory, speed
from omlx_server.doctor.selftest.check import REPORT, Beat, Check, SelftestPlan
from omlx_server.doctor.selftest.prefixes import Prefixes
from omlx_server.doctor.selftest.rows import batched
from omlx_server.doctor.selftest.subject import Subject
from omlx_server.doctor.shareable import shareable, versions
from omlx_server.models.description import described
from omlx_server.wiring.model_factory import limits

Progress = Callable[[str, int, int], None]
"""Reports the name of the running check, and as a `Beat` its progress."""

# The reference BLAS in mlx's wheel does 1 or 2, OpenBLAS 30 and more on one core.
_LEAST_GFLOPS = 6.0
_SPEEDS = ("chunks", "1 stream", "8 streams")
_KIND = "omlx-server self-test"


def checks(subject: Subject, plan: SelftestPlan, progress: Progress) -> Iterator[Check]:
    yield software_check()
    yield blas_check(device_here())
    yield _load(subject)
    prefixes = Prefixes(subject, plan)
    steps: tuple[tuple[str, Callable[[Beat], Check]], ...] = (
        ("hit: memory", prefixes.memory),
        ("hit: files", prefixes.files),
        ("batch", lambda beat: batched(subject, plan, beat)),
        ("memory", lambda beat: memory.check_memory(subject, plan, beat)),
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
    finding = software.blas(machine)
    if not machine.is_cpu:
        return Check(finding)
    gflops = matmul_gflops()
    if machine.blas and gflops < _LEAST_GFLOPS:
        finding = warn(
            "blas",
            f"{machine.blas} is there, but products of matrices run at {gflops:.1f} GFLOP/s: this "
            "build of MLX computes without it, so prompts are read up to 30 times slower",
            "pip install --force-reinstall mlx[cpu]",
        )
    return Check(finding, {"blas": machine.blas, "gflops": round(gflops, 1)})


def _load(subject: Subject) -> Check:
    nbytes, name = subject.loaded.weight_bytes, subject.located.names[0]
    says = f"{name}: {in_words(nbytes)} of weights, there after {subject.load_seconds:.1f} s"
    figures = {"weight_bytes": nbytes, "seconds": round(subject.load_seconds, 2)}
    return Check(ok("model", says), figures)


def document(subject: Subject, checks: Sequence[Check], *, quick: bool) -> dict[str, Any]:
    return shareable(
        _KIND,
        model=_model(subject),
        settings=_settings(subject),
        checks=[(check.finding, check.figures) for check in checks],
        quick=quick,
        seed=subject.seed,
    )


def _model(subject: Subject) -> dict[str, Any]:
    dims, about = subject.loaded.dims, described(subject.located.path)
    return {
        "name": subject.located.names[0],
        "type": about.model_type if about else "",
        "weight_bytes": subject.loaded.weight_bytes,
        "dims": asdict(dims),
        "drafts": subject.loaded.drafter is not None or subject.loaded.has_heads,
    }


def _settings(subject: Subject) -> dict[str, Any]:
    settings, names = subject.settings, subject.located.names
    kv, scheduler = settings.kv_cache_of(names), limits(settings, names)
    return {
        "kv_cache": {"scheme": kv.scheme, "bits": kv.bits, "group_size": kv.group_size},
        "cache.enabled": settings.cache.enabled,
        "cache.hot_cache_only": settings.cache.hot_cache_only,
        "cache.block_tokens": settings.cache.block_tokens,
        "prefill_chunk_tokens": scheduler.prefill_chunk_tokens,
        "max_batch_size": scheduler.max_batch_size,
        "speculation": settings.speculation_of(names).mode,
        "memory.limit": settings.memory.limit,
        "memory.activation_reserve": settings.memory.activation_reserve,
    }
