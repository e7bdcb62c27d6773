"""The command `scripts/bench speculation`."""

from dataclasses import replace
from typing import Annotated

import typer

from omlx_server.core.work import finish
from omlx_server.settings import Settings
from omlx_server.wiring.model_factory import InstanceFactory, limits
from scripts.benchmarks import pairs_report
from scripts.benchmarks.command_line import MODEL, OUT, Model, Out, find
from scripts.benchmarks.progress import open_steps
from scripts.benchmarks.speculation_measure import WITH, WITHOUT, SpeculationBench, requirements
from scripts.benchmarks.speculation_plan import SPECULATION_QUICK, SpeculationPlan
from scripts.benchmarks.speculation_texts import tasks


def speculation(
    quick: Annotated[
        bool, typer.Option("--quick", help="Two minutes: a short file, one round.")
    ] = False,
    repeats: Annotated[
        int,
        typer.Option(
            min=0, metavar="N", show_default=False, help="Rounds [default: 3; --quick: 1]."
        ),
    ] = 0,
    model: Model = MODEL,
    out: Out = OUT,
) -> None:
    """Measure answers with drafts and without, by turns on one engine.

    An edit that repeats most of a file, at 1 stream and at 4; JSON by a schema; random prose, at 1
    stream and at 8. And with drafts that are all right, or all wrong. The answers must be the same.

    \b
    Examples:
      scripts/bench speculation --quick
      scripts/bench speculation --repeats 5

    \b
    Writes speculation.json and speculation.md into bench-out/ (or --out DIR).
    """
    plan = SPECULATION_QUICK if quick else SpeculationPlan()
    plan = replace(plan, repeats=repeats) if repeats else plan
    located = find(model)
    out.mkdir(parents=True, exist_ok=True)
    settings = Settings.of({"cache": {"hot_cache_only": True}})
    with open_steps(plan.repeats) as steps:
        instance = finish(InstanceFactory(settings).making(located))
        asked = tasks(located, instance.runner.loaded.dims.vocab, plan)
        bench = SpeculationBench(instance, limits(settings), asked, plan.repeats)
        metrics = bench.run(steps)
    pairs_report.publish(
        "speculation",
        out,
        model=located.path.name,
        plan=plan,
        sides=(WITH, WITHOUT),
        metrics=metrics,
        requirements=requirements(metrics),
    )
