"""The command `scripts/bench speculation`."""

import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from omlx_server.compute.hardware import device_policy
from omlx_server.compute.model.loader import load
from omlx_server.compute.model.pairing import paired
from omlx_server.core.work import finish
from omlx_server.models.locate import Located
from omlx_server.settings import Settings
from omlx_server.wiring.model_factory import InstanceFactory, limits
from scripts.benchmarks import comparison, peers, speculation_servers
from scripts.benchmarks.command_line import MODEL, OUT, Model, Out, find
from scripts.benchmarks.deep_model import deepened, save, small
from scripts.benchmarks.metrics import Metric
from scripts.benchmarks.peer_servers import Launch
from scripts.benchmarks.peers import Peer
from scripts.benchmarks.progress import Steps, open_steps
from scripts.benchmarks.speculation_measure import SpeculationBench, measured, requirements
from scripts.benchmarks.speculation_plan import SPECULATION_QUICK, WITH, WITHOUT, SpeculationPlan
from scripts.benchmarks.speculation_servers import NAMES, ServerBench, tasks_for
from scripts.benchmarks.speculation_texts import for_draft_models, tasks, texts

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
    against: Annotated[
        str,
        typer.Option(
            "--peers", metavar="NAME[,NAME]", help=f"Who else: {', '.join(NAMES)}; all; none."
        ),
    ] = "mlx_lm",
    model: Model = MODEL,
    out: Out = OUT,
) -> None:
    """Measure answers with drafts and without, by turns on one engine; then beside other servers.

    An edit that repeats most of a file, at 1 stream and at 4; JSON by a schema; random prose, at 1
    stream and at 8. With drafts that are all right, or all wrong; with a draft model that is always
    right, and one that never is. The answers must be the same.

    \b
    mlx_lm      mlx_lm.server with a draft model, on prose at 1 stream and 4; needs no install
    llama_cpp   llama.cpp's server with its n-grams, on an edit; takes ten minutes to compile
    Over HTTP, ours as well; each is compared with itself without drafts.

    \b
    Examples:
      scripts/bench speculation --quick
      scripts/bench speculation --repeats 5
      scripts/bench speculation --peers all

    \b
    Writes speculation.json and speculation.md into bench-out/ (or --out DIR).
    """
    plan = SPECULATION_QUICK if quick else SpeculationPlan()
    plan = replace(plan, repeats=repeats) if repeats else plan
    located, chosen = find(model), peers.choose(against, NAMES)
    peers.check_model(chosen, located.path)
    peers.install(chosen)
    out.mkdir(parents=True, exist_ok=True)
    chunks = {"prefill_chunk_tokens": device_policy.current().chunk}  # of all models alike
    settings = Settings.of({"cache": {"hot_cache_only": True}, "scheduler": chunks})
    with open_steps(plan.repeats * (1 + len(chosen))) as steps:
        metrics = measured(_benches(located, settings, plan), plan.repeats, steps)
        for peer in chosen:
            metrics += _beside(peer, located, plan, steps)
    comparison.publish(
        "speculation",
        out,
        model=located.path.name,
        plan=plan,
        sides=(WITH, WITHOUT),
        metrics=metrics,
        requirements=[*requirements(metrics), *speculation_servers.requirements(metrics)],
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


def _beside(peer: Peer, located: Located, plan: SpeculationPlan, steps: Steps) -> list[Metric]:
    """What a peer that takes a draft model serves is deeper than the model, which drafts for it."""
    edit, prose = texts(located, plan)
    with tempfile.TemporaryDirectory(prefix="omlx-bench-") as name, ExitStack() as stack:
        folder = Path(name)
        model = located.path if peer.only_gguf else _deep(located.path, folder / "deep")
        launch = Launch(model, folder, plan.longest)
        servers = speculation_servers.start(peer, launch, located.path, stack)
        bench = ServerBench(servers, tasks_for(peer, edit, prose, plan.out))
        return measured([bench], plan.repeats, steps)


def _deep(path: Path, into: Path) -> Path:
    """A directory of a deeper model than that in `path`."""
    return save(deepened(load(path), path, _TIMES), path, into)
