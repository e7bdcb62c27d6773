"""`omlx-server bench`: measures a running server and prints the figures."""

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from omlx_server.cli.bench.measure import BenchPlan, ServerBench
from omlx_server.cli.bench.result import Result, comparison_json, read_result, result_lines
from omlx_server.cli.bench.target import BenchTarget
from omlx_server.cli.server_client.http import ServerClient
from omlx_server.cli.shell.output import show_json
from omlx_server.cli.shell.progress import open_display
from omlx_server.errors import OmlxError, UsageError, how_to_install, system_errors_as

PLAN = BenchPlan()
SavePicture = Callable[[Result, Result | None, Path], None]


def run(
    *,
    server: ServerClient,
    as_json: bool,
    plot: Path | None,
    against: Path | None,
    model: str,
    plan: BenchPlan = PLAN,
) -> int:
    """Print the measured figures. Raises UsageError for a file or matplotlib, else OmlxError."""
    save_picture = _picture_saver(plot) if plot else None
    before = read_result(against) if against else None
    served = server.models()
    if not model and not served:
        raise UsageError(f"{server.url} names no model", hint="give --model, or --api-key")
    result = asyncio.run(_measure(server, model or served[0], plan))
    if not as_json:
        print("\n".join(result_lines(result, before)))
    if save_picture is not None and plot is not None:
        with system_errors_as(OmlxError, f"{plot} can't be written"):
            save_picture(result, before, plot)
    if as_json:  # last: an error of the picture is shown as JSON, too
        comparison = {"against": comparison_json(result, before)} if before else {}
        show_json(result.as_json() | comparison)
    return 0


async def _measure(server: ServerClient, model: str, plan: BenchPlan) -> Result:
    begun = time.monotonic()
    with open_display() as display:
        async with BenchTarget(server, model) as target:
            bench = ServerBench(target, plan, display.update)
            figures = await bench.run()
    version = server.get("/version").text("version") or "unknown"
    return Result(
        server.url,
        model,
        f"version {version}",
        datetime.now(UTC).isoformat(timespec="seconds"),
        time.monotonic() - begun,
        tuple(figures),
        tuple(bench.notes),
    )


def _picture_saver(plot: Path) -> SavePicture:
    """Return `save` of plot.py. Raises UsageError without its directory or matplotlib."""
    if not plot.absolute().parent.is_dir():
        raise UsageError(f"there is no directory {plot.absolute().parent}")
    try:
        from omlx_server.cli.bench.plot import save
    except ModuleNotFoundError:
        hint = how_to_install("bench")
        raise UsageError("--plot needs matplotlib", hint=hint) from None
    return save
