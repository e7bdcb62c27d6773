"""The command line of scripts/bench."""

import signal
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from omlx_server.cli.shell import output
from omlx_server.compute.hardware import device
from omlx_server.errors import OmlxError, UsageError
from scripts.benchmarks import (
    adapters_command,
    kv_command,
    markdown,
    memory_command,
    peers,
    plot,
    quantities,
    report,
    share,
    speculation_command,
    table,
)
from scripts.benchmarks.command_line import (
    MODEL,
    OUT,
    Model,
    Only,
    Out,
    chosen_parts,
    find,
    open_console,
)
from scripts.benchmarks.measure import Bench, count_steps
from scripts.benchmarks.peers import NAMES, Peer
from scripts.benchmarks.plan import MEASUREMENTS, QUICK, Plan
from scripts.benchmarks.process import ChildFailed
from scripts.benchmarks.progress import open_steps

_ENDINGS = (signal.SIGTERM, signal.SIGHUP)

app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)


_ALL = ",".join(MEASUREMENTS)
_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}

app.command("adapters", context_settings=_CONTEXT)(adapters_command.adapters)
app.command("kv", context_settings=_CONTEXT)(kv_command.kv)
app.command("memory", context_settings=_CONTEXT)(memory_command.memory)
app.command("speculation", context_settings=_CONTEXT)(speculation_command.speculation)


@app.callback(invoke_without_command=True, context_settings=_CONTEXT)
def bench(
    context: typer.Context,
    quick: Annotated[
        bool, typer.Option("--quick", help="One round, few sizes: a minute or two.")
    ] = False,
    only: Only = _ALL,
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
    shared: Annotated[
        Path | None,
        typer.Option(
            "--share",
            metavar="FILE",
            help="Write a report to share as well, in the form of `omlx-server doctor --share`.",
        ),
    ] = None,
    model: Model = MODEL,
    out: Out = OUT,
) -> None:
    """Measure our server beside the bare batch loop and other servers.

    Same model, same prompts, one run. Each system has a process of its own, and every workload
    runs on all of them before the next begins; absolute numbers drift with the machine, so look
    at the ratios.

    \b
    throughput  1, 4 and 8 prompts at once: output tokens per second, prefill included and without
    ttft        a 549-token prompt on an idle server: time to its first token
    gap         4 streams run, a 2,000-token prompt comes: how long do they wait for a token?
    cache       a prompt again, half known, turn by turn, 8 on one prefix: computed tokens, waiting
    cold        a prompt after a restart, decode while blocks are written: of ours alone
    host        a one-layer model: microseconds per token that are not the model
    Peak memory of each process comes with all but cold and host.

    \b
    mlx_lm      mlx_lm.server; it is there already
    vllm_mlx    vllm-mlx with continuous batching and its prefix cache
    llama_cpp   llama.cpp's server, 8 slots; of the starter model only, with its weights in 4 bits
    The last two are put into build/peers/ when they are first asked for: vllm-mlx by pip,
    llama-server from a source package, which takes ten minutes to compile.

    \b
    Examples:
      scripts/bench --quick
      scripts/bench --only throughput,gap --repeats 5
      scripts/bench --peers none --out /tmp/before
      scripts/bench --quick --peers all
      scripts/bench --quick --share report.json
      scripts/bench adapters --quick
      scripts/bench kv --quick
      scripts/bench memory --quick
      scripts/bench speculation --quick

    \b
    Writes bench.json, bench.md and bench.png into bench-out/ (or --out DIR).
    A file of --share names the model; it has no paths and no names of the user or the machine.
    Close what else uses the machine. Ctrl-C ends everything that was started.
    """
    if context.invoked_subcommand:
        return
    if shared is not None and not shared.absolute().parent.is_dir():
        raise UsageError(f"--share {shared}: there is no such directory", hint="make it first")
    result = _measure(_plan(quick, only, repeats), peers.choose(against), model, out)
    if shared is not None:
        share.write(result, shared, quick=quick)


def main() -> None:
    """Errors become one line each, as in `omlx-server`."""
    for number in _ENDINGS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as it is under nohup
            signal.signal(number, _exit_on_signal)
    try:
        app(prog_name="scripts/bench")
    except ChildFailed as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    except OmlxError as error:
        sys.exit(output.report_error(error))


def _plan(quick: bool, only: str, repeats: int) -> Plan:
    plan = replace(QUICK if quick else Plan(), only=chosen_parts(only, MEASUREMENTS))
    return replace(plan, repeats=repeats) if repeats else plan


def _measure(plan: Plan, chosen: tuple[Peer, ...], name: str, out: Path) -> report.Report:
    model = find(name).path
    peers.check_model(chosen, model)
    peers.install(chosen)
    out.mkdir(parents=True, exist_ok=True)
    steps = count_steps(plan, chosen)
    with tempfile.TemporaryDirectory(prefix="omlx-bench-") as folder, open_steps(steps) as shown:
        metrics = Bench(plan, model, Path(folder), peers=chosen, steps=shown).run()
    result = report.Report(
        created=report.now(),
        machine={**report.describe_machine(device.name()), **peers.versions(chosen)},
        model=model.name,
        plan=plan,
        metrics=metrics,
        requirements=quantities.requirements(metrics, plan),
    )
    _publish(result, out)
    return result


def _publish(result: report.Report, out: Path) -> None:
    report.write(result, out / "bench.json")
    (out / "bench.md").write_text(markdown.ratios(result), encoding="utf-8")
    plot.save(result, out / "bench.png")
    console = open_console()
    console.print(table.tables(result))
    files = ", ".join(str(out / f"bench.{kind}") for kind in ("json", "md", "png"))
    console.print(f"written: {files}", soft_wrap=True)


def _exit_on_signal(number: int, frame: FrameType | None) -> None:
    """So that SIGTERM and a closed terminal, too, end what was started. A terminal may tell twice:
    the second must not interrupt the ending."""
    for each in _ENDINGS:
        signal.signal(each, signal.SIG_IGN)
    sys.exit(128 + number)


if __name__ == "__main__":
    main()
