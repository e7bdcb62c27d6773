"""The command `scripts/bench cpu`."""

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from omlx_server.errors import UsageError
from scripts.benchmarks import pairs_report
from scripts.benchmarks.command_line import OUT, Out
from scripts.benchmarks.cpu_measure import CpuBench, requirements
from scripts.benchmarks.cpu_plan import CPU_QUICK, OTHER, OURS, CpuPlan
from scripts.benchmarks.progress import open_steps

_ROOT = Path(__file__).parents[2]


def cpu(
    quick: Annotated[bool, typer.Option("--quick", help="One round, few tokens.")] = False,
    repeats: Annotated[
        int,
        typer.Option(
            min=0, metavar="N", show_default=False, help="Rounds [default: 5; --quick: 1]."
        ),
    ] = 0,
    against: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Another checkout of this project, measured by turns with this one."
        ),
    ] = None,
    out: Out = OUT,
) -> None:
    """Measure the CPU time that a token takes outside the model, by thread, at 1, 8 and 32 streams.

    The model has one layer. What the mlx thread spends in calls of the model and in MLX's `eval`
    and `async_eval` is the model's; all else of that thread is the host's, and the event loop's
    thread. Nothing is drafted. A model that computes nothing shows the most tokens a second that
    any device could give, over HTTP on this machine and by the CPU time of both threads.

    CPU times bear a busy machine better than wall times do, but not well: look at the ratios.

    \b
    Examples:
      scripts/bench cpu --quick
      scripts/bench cpu --against ../before

    \b
    Writes cpu.json and cpu.md into bench-out/ (or --out DIR).
    """
    plan = CPU_QUICK if quick else CpuPlan()
    plan = replace(plan, repeats=repeats) if repeats else plan
    trees = {OURS: _ROOT}
    if against is not None:
        if not (against / "omlx_server").is_dir():
            raise UsageError(f"--against {against}: there is no omlx_server in it")
        trees[OTHER] = against.absolute()
    out.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="omlx-bench-") as folder,
        open_steps(1 + plan.repeats * len(plan.streams)) as steps,
    ):
        metrics = CpuBench(plan, trees, Path(folder)).run(steps)
    pairs_report.publish(
        "cpu",
        out,
        model="a one-layer model",
        plan=plan,
        sides=(OURS, OTHER),
        metrics=metrics,
        requirements=requirements(metrics, plan) if against is not None else [],
    )
