"""The command `scripts/bench page`."""

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from scripts.benchmarks import pairs_report
from scripts.benchmarks.command_line import MODEL, OUT, Model, Out, find
from scripts.benchmarks.http_system import RAM_ONLY, start_ours
from scripts.benchmarks.page_measure import PageBench, requirements
from scripts.benchmarks.page_plan import PAGE_QUICK, WITH, WITHOUT, PagePlan
from scripts.benchmarks.progress import open_steps

# There are no keys, so the admin routes of this server need none either.
_OPEN = "auth.admin=key"


def page(
    quick: Annotated[
        bool, typer.Option("--quick", help="A minute or two: shorter windows, three rounds.")
    ] = False,
    repeats: Annotated[
        int,
        typer.Option(
            min=0, metavar="N", show_default=False, help="Rounds [default: 9; --quick: 3]."
        ),
    ] = 0,
    model: Model = MODEL,
    out: Out = OUT,
) -> None:
    """Measure what an open page costs a busy server.

    8 streams decode, by turns with a listener of GET /admin/live, which reads all events, and
    without; then the same with ten listeners. The listeners are on this machine too.

    \b
    Examples:
      scripts/bench page --quick
      scripts/bench page --repeats 21

    \b
    Writes page.json and page.md into bench-out/ (or --out DIR).
    """
    plan = PAGE_QUICK if quick else PagePlan()
    plan = replace(plan, repeats=repeats) if repeats else plan
    located = find(model)
    out.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="omlx-bench-") as folder,
        open_steps(plan.repeats) as steps,
    ):
        settings = (RAM_ONLY, _OPEN, f"scheduler.max_batch_size={plan.streams}")
        server = start_ours(located.path, Path(folder), *settings)
        try:
            server.wait_until_ready()
            metrics = PageBench(server, plan).run(steps)
        finally:
            server.child.end()
    pairs_report.publish(
        "page",
        out,
        model=located.path.name,
        plan=plan,
        sides=(WITH, WITHOUT),
        metrics=metrics,
        requirements=requirements(metrics),
    )
