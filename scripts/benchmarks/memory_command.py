"""The command `scripts/bench memory`."""

import json
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from omlx_server.compute.hardware import device
from omlx_server.errors import UsageError
from scripts.benchmarks import environment, memory_plan, memory_report, report
from scripts.benchmarks.command_line import OUT, Out, find, publish
from scripts.benchmarks.memory_plan import MEMORY_QUICK, STARTER, Case, MemoryPlan
from scripts.benchmarks.memory_report import CaseResult, Line, MemoryReport
from scripts.benchmarks.process import Child
from scripts.benchmarks.progress import Steps, open_steps


def memory(
    quick: Annotated[
        bool, typer.Option("--quick", help="A minute: few models, few shapes.")
    ] = False,
    only: Annotated[
        str, typer.Option(metavar="TEXT", help="Only models whose name contains this.")
    ] = "",
    out: Out = OUT,
) -> None:
    """Measure how well the memory of a step is known before it runs.

    Each model is probed as at load, in a process of its own; then larger steps than any probe are
    estimated and run. Of each: the most that was alive above weights and caches, and the ratio of
    the estimate to that; beside it those of the same formula without a fit, of a flat reserve and
    of the bound that stands in where probes can't run. `whole` is the ratio for all that is held.

    \b
    Examples:
      scripts/bench memory --quick
      scripts/bench memory --only qwen3

    \b
    Writes memory.json and memory.md into bench-out/ (or --out DIR).
    """
    plan = MEMORY_QUICK if quick else MemoryPlan()
    cases = [case for case in plan.cases if only in case.name]
    if not cases:
        names = ", ".join(case.name for case in plan.cases)
        raise UsageError(f"--only: no model's name contains {only!r}", hint=f"there are: {names}")
    out.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="omlx-bench-") as folder,
        open_steps(len(cases)) as steps,
    ):
        results = [_run(case, plan, Path(folder), steps) for case in cases]
    _publish(plan, results, out)


def _run(case: Case, plan: MemoryPlan, folder: Path, steps: Steps) -> CaseResult:
    """Raises ChildFailed."""
    steps.begin(case.name)
    job = {
        "model": case.model,
        "dtype": case.dtype,
        "variant": [case.variant.scheme, case.variant.bits],
        "path": str(find(STARTER).path) if case.model == STARTER else None,
        "forwards": [memory_plan.plain(forward) for forward in plan.forwards],
    }
    command = [sys.executable, "-m", "scripts.benchmarks.memory_worker", json.dumps(job)]
    child = Child(command, environment.clean(), folder / "memory.log", piped=True)
    try:
        line = child.pipes[1].readline()
        if not line:
            raise child.failure("ended")
    finally:
        child.end()
    steps.done("done")
    return _result(case, json.loads(line))


def _result(case: Case, found: dict[str, Any]) -> CaseResult:
    rows = found.pop("rows")
    lines = [Line(**{**row, "forward": memory_plan.parsed(row["forward"])}) for row in rows]
    return CaseResult(case, lines=lines, **found)


def _publish(plan: MemoryPlan, results: list[CaseResult], out: Path) -> None:
    result = MemoryReport(report.now(), report.describe_machine(device.name()), plan, results)
    publish(
        "memory",
        out,
        write=partial(memory_report.write, result),
        markdown=memory_report.markdown(result),
        tables=memory_report.tables(result),
    )
