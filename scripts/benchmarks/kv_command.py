"""The command `scripts/bench kv`."""

import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from omlx_server.compute.hardware import device
from omlx_server.errors import UsageError
from scripts.benchmarks import kv_bounds, kv_report, report
from scripts.benchmarks.command_line import MODEL, OUT, Model, Out, find, publish
from scripts.benchmarks.kv_measure import KvBench, count_kv_steps
from scripts.benchmarks.kv_plan import KV_QUICK, MEASUREMENTS, KvPlan
from scripts.benchmarks.kv_quantities import Group
from scripts.benchmarks.progress import open_steps


def kv(
    quick: Annotated[bool, typer.Option("--quick", help="A minute: one round, few sizes.")] = False,
    only: Annotated[
        str,
        typer.Option(metavar="NAME[,NAME]", help=f"Measure these only: {', '.join(MEASUREMENTS)}."),
    ] = ",".join(MEASUREMENTS),
    repeats: Annotated[
        int,
        typer.Option(
            min=0, metavar="N", show_default=False, help="Rounds [default: 5; --quick: 1]."
        ),
    ] = 0,
    model: Model = MODEL,
    out: Out = OUT,
) -> None:
    """Measure the schemes of kv_cache beside plain caches: what they cost, what they save.

    \b
    quality  a fixed text, read through the caches: perplexity, KL, agreement with plain ones
    bytes    a token of each layer, prefilled and rebuilt, against the format's arithmetic
    tokens   how many of them a hot tier of 64 MiB holds
    memory   the peak over a prefill and over a rebuild: was there ever a full-precision copy?
    speed    decode behind short and long contexts, prefill; ratios to plain caches

    \b
    Examples:
      scripts/bench kv --quick
      scripts/bench kv --only quality,bytes

    \b
    Writes kv.json and kv.md into bench-out/ (or --out DIR).
    """
    _measure(_plan(quick, only, repeats), model, out)


def _plan(quick: bool, only: str, repeats: int) -> KvPlan:
    names = tuple(name.strip() for name in only.split(","))
    unknown = [name for name in names if name not in MEASUREMENTS]
    if unknown:
        hint = f"known: {', '.join(MEASUREMENTS)}"
        raise UsageError(f"--only: there is no measurement {unknown[0]!r}", hint=hint)
    plan = replace(KV_QUICK if quick else KvPlan(), only=names)
    return replace(plan, repeats=repeats) if repeats else plan


def _measure(plan: KvPlan, name: str, out: Path) -> None:
    located = find(name)
    out.mkdir(parents=True, exist_ok=True)
    steps = count_kv_steps(plan)
    with tempfile.TemporaryDirectory(prefix="omlx-bench-") as folder, open_steps(steps) as shown:
        groups = KvBench(plan, located.path, Path(folder), shown).run()
    _publish(plan, located.path.name, groups, out)


def _publish(plan: KvPlan, model: str, groups: list[Group], out: Path) -> None:
    result = kv_report.KvReport(
        created=report.now(),
        machine=report.describe_machine(device.name()),
        model=model,
        plan=plan,
        groups=groups,
        requirements=kv_bounds.requirements(groups, plan),
    )
    publish(
        "kv",
        out,
        write=partial(kv_report.write, result),
        markdown=kv_report.markdown(result),
        tables=kv_report.tables(result),
    )
