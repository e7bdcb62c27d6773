"""The command `scripts/bench rows`."""

from dataclasses import replace
from typing import Annotated

import typer

from omlx_server.compute.model.loader import load
from scripts.benchmarks import pairs_report, rows_shared
from scripts.benchmarks.command_line import MODEL, OUT, Model, Out, Repeats, find
from scripts.benchmarks.progress import open_steps
from scripts.benchmarks.rows_measure import OURS, PADDED, RowsBench, requirements, shapes
from scripts.benchmarks.rows_plan import ROWS_QUICK, RowsPlan
from scripts.benchmarks.rows_shared import SharedBench


def rows(
    quick: Annotated[
        bool, typer.Option("--quick", help="A minute: shorter rows, two rounds.")
    ] = False,
    repeats: Repeats = 0,
    model: Model = MODEL,
    out: Out = OUT,
) -> None:
    """Measure rows that decode together: each of its own length, beside a batch that is padded.

    A long row beside short ones, each alone, and rows of one length: the bytes of their keys and
    values, the time of a decode step, and what it takes when a row comes or goes. Then one prefix
    that is stored: a row and its blocks, several rows on it, and a hit. Beside ours is the batch of
    mlx-lm's caches, in the same process and by turns.

    The padded batch of the full plan takes 6 GB with the starter model.

    \b
    Examples:
      scripts/bench rows --quick
      scripts/bench rows --repeats 9

    \b
    Writes rows.json and rows.md into bench-out/ (or --out DIR).
    """
    plan = ROWS_QUICK if quick else RowsPlan()
    plan = replace(plan, repeats=repeats) if repeats else plan
    located = find(model)
    out.mkdir(parents=True, exist_ok=True)
    with open_steps(len(shapes(plan)) + 1) as steps:
        loaded = load(located.path)
        metrics = RowsBench(loaded, plan).run(steps)
        steps.begin("one prefix")
        metrics += SharedBench(loaded, plan).run()
        steps.done("done")
    pairs_report.publish(
        "rows",
        out,
        model=located.path.name,
        plan=plan,
        sides=(OURS, PADDED),
        metrics=metrics,
        requirements=[*requirements(metrics, plan), *rows_shared.requirements(metrics, plan)],
    )
