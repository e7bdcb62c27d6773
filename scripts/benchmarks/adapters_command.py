"""The command `scripts/bench adapters`."""

from dataclasses import replace
from typing import Annotated

import typer

from omlx_server.compute.model.loader import load
from scripts.benchmarks import comparison
from scripts.benchmarks.adapters_measure import (
    ADAPTED,
    ADAPTERS_QUICK,
    PLAIN,
    AdaptersBench,
    AdaptersPlan,
    requirements,
)
from scripts.benchmarks.command_line import MODEL, OUT, Model, Out, Repeats, find


def adapters(
    quick: Annotated[bool, typer.Option("--quick", help="Fewer steps, two rounds.")] = False,
    repeats: Repeats = 0,
    model: Model = MODEL,
    out: Out = OUT,
) -> None:
    """Measure rows with LoRA adapters: a decode step of rows that have one each, beside none.

    \b
    Examples:
      scripts/bench adapters --quick
      scripts/bench adapters --repeats 9

    \b
    Writes adapters.json and adapters.md into bench-out/ (or --out DIR).
    """
    plan = ADAPTERS_QUICK if quick else AdaptersPlan()
    plan = replace(plan, repeats=repeats) if repeats else plan
    located = find(model)
    out.mkdir(parents=True, exist_ok=True)
    metrics = AdaptersBench(load(located.path), plan).run()
    comparison.publish(
        "adapters",
        out,
        model=located.path.name,
        plan=plan,
        sides=(ADAPTED, PLAIN),
        metrics=metrics,
        requirements=requirements(metrics),
    )
