"""The command `scripts/bench speculation`."""

from dataclasses import replace
from typing import Annotated

import typer

from omlx_server.compute.model.pairing import paired
from omlx_server.core.work import finish
from omlx_server.models.locate import Located
from omlx_server.settings import Settings
from omlx_server.wiring.model_factory import InstanceFactory, limits
from scripts.benchmarks import pairs_report
from scripts.benchmarks.command_line import MODEL, OUT, Model, Out, find
from scripts.benchmarks.deep_model import deepened, small
from scripts.benchmarks.progress import open_steps
from scripts.benchmarks.speculation_measure import (
    WITH,
    WITHOUT,
    SpeculationBench,
    measured,
    requirements,
)
from scripts.benchmarks.speculation_plan import SPECULATION_QUICK, SpeculationPlan
from scripts.benchmarks.speculation_texts import for_draft_models, tasks

# So many times as deep is the model that has a draft model.
_TIMES = 3


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
    stream and at 8. With drafts that are all right, or all wrong; with a draft model that is always
    right, and one that never is. The answers must be the same.

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
        metrics = measured(_benches(located, settings, plan), plan.repeats, steps)
    pairs_report.publish(
        "speculation",
        out,
        model=located.path.name,
        plan=plan,
        sides=(WITH, WITHOUT),
        metrics=metrics,
        requirements=requirements(metrics),
    )


def _benches(located: Located, settings: Settings, plan: SpeculationPlan) -> list[SpeculationBench]:
    """The model alone, then one that is deeper, with this as its draft model, or a random one."""
    factory, bounds = InstanceFactory(settings), limits(settings)
    instance = finish(factory.making(located))
    loaded = instance.runner.loaded
    asked = tasks(located, loaded.dims.vocab, plan)
    prose = next(task for task in asked if task.name == "prose_1")
    right, wrong = for_draft_models(prose)
    deep = deepened(loaded, located.path, _TIMES)
    benches = [SpeculationBench(instance, bounds, asked)]
    for drafter, drafted in ((loaded, right), (small(located.path), wrong)):
        pair = paired(deep, drafter)
        share = factory.account.share(pair.weight_bytes)
        with_drafter = finish(factory.around(pair, located, share))
        benches.append(SpeculationBench(with_drafter, bounds, drafted, "draft"))
    return benches
