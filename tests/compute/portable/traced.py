"""What the traced runs have put into graphs, beside what the GPU backends of MLX take."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from tests.compute.portable.table import TABLE, Lacks, Takes
from tests.compute.portable.uses import Place, Use

ROOT = Path(__file__).parents[3]
SHARES = 2
_RUNS, _TABLE = "tests.compute.portable.runs", "tests/compute/portable/table.py"
_MOST_PLACES = 3

Traced = Mapping[Use, list[Place]]


def traced(*programs: tuple[str, ...]) -> dict[Use, list[Place]]:
    """What these programs trace, all at once: each is a module with its arguments. Raises
    RuntimeError if one fails."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0"}
    started = [
        subprocess.Popen(
            [sys.executable, "-m", *program],
            cwd=ROOT,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for program in programs
    ]
    found: dict[Use, set[Place]] = {}
    for process in started:
        out, error = process.communicate()
        if process.returncode:
            raise RuntimeError(f"a trace ended with {process.returncode}: {error[-2000:]}")
        for operation, inputs, outputs, on_cpu, places in json.loads(out):
            use = Use(operation, tuple(inputs), tuple(outputs), on_cpu)
            found.setdefault(use, set()).update(Place(*place) for place in places)
    return {use: sorted(places) for use, places in sorted(found.items())}


def trace_all_runs() -> dict[Use, list[Place]]:
    return traced(*((_RUNS, str(number), str(SHARES)) for number in range(SHARES)))


def problems(found: Traced) -> Iterator[str]:
    """A sentence for each use that Metal or CUDA can't compute, or that nobody has looked up."""
    for use, places in found.items():
        if use.on_cpu:
            continue
        if use.operation not in TABLE:
            yield f"{_said(use)}: look up who takes it, and add it to {_TABLE}; {_where(places)}"
            continue
        for backend, takes in TABLE[use.operation].backends():
            reason = _refusal(use, takes)
            if reason:
                yield f"{_said(use)}: {backend} {reason}; {_where(places)}"


def _refusal(use: Use, takes: Takes | Lacks) -> str:
    if isinstance(takes, Lacks):
        return "" if takes.harmless else f"has it for no dtype ({takes.words})"
    refused = {*use.inputs} - takes.inputs | {*use.outputs} - takes.outputs
    return f"does not have it for {_listed(refused)}" if refused else ""


def _said(use: Use) -> str:
    return f"{use.operation} of {_listed(use.inputs or use.outputs)} to {_listed(use.outputs)}"


def _where(places: Iterable[Place]) -> str:
    first = sorted(places, key=lambda place: (not place.is_own, place))[:_MOST_PLACES]
    said = [f"omlx_server/{p.path}:{p.line} in {p.function}" for p in first]
    return f"used in {', '.join(said)}"


def _listed(dtypes: Iterable[str]) -> str:
    return ", ".join(dtype.rstrip("_") for dtype in sorted(dtypes))
