"""`omlx-server bench`: settings in, figures out. Starts no server."""

import asyncio
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from omlx_server.cli.bench import result as results
from omlx_server.cli.bench.compare import ratios
from omlx_server.cli.bench.measure import Bench
from omlx_server.cli.bench.plan import Plan
from omlx_server.cli.bench.result import Result
from omlx_server.cli.bench.table import lines
from omlx_server.cli.bench.target import Target
from omlx_server.cli.server_client.address import server_of
from omlx_server.cli.server_client.http import Asked
from omlx_server.cli.shell.output import show_json
from omlx_server.cli.shell.progress import open_display
from omlx_server.errors import OmlxError, UsageError

PLAN = Plan()
Painter = Callable[[Result, Result | None, Path], None]


def run(
    *,
    as_json: bool,
    plot: Path | None,
    against: Path | None,
    url: str,
    model: str,
    api_key: str,
    config: Path | None,
    plan: Plan = PLAN,
) -> int:
    """What could fail at the end is looked at first: nobody should wait a minute for that."""
    painter = _painter(plot) if plot else None
    before = results.read(against) if against else None
    server = server_of(url, api_key, config)
    name = _model(server, model)
    result = asyncio.run(_measured(server, name, plan))
    if not as_json:
        print("\n".join(lines(result, before)))
    if painter is not None and plot is not None:
        _draw(painter, result, before, plot)
    if as_json:  # last: an error of the picture is a document, too, and there is one
        compared = {"against": ratios(result, before)} if before else {}
        show_json(result.as_json() | compared)
    return 0


def _model(server: Asked, wanted: str) -> str:
    served = server.models()
    if not wanted and not served:
        raise UsageError(f"{server.url} names no model", hint="give --model, or --api-key")
    return wanted or served[0]


async def _measured(server: Asked, model: str, plan: Plan) -> Result:
    begun = time.monotonic()
    with open_display() as display:
        async with Target(server.url, model, server.key, is_own=server.is_own) as target:
            bench = Bench(target, plan, display.update)
            figures = await bench.run()
    return Result(
        server.url,
        model,
        _software(server),
        datetime.now(UTC).isoformat(timespec="seconds"),
        time.monotonic() - begun,
        tuple(figures),
        tuple(bench.notes),
    )


def _software(server: Asked) -> str:
    said = server.get("/version").json()
    version = said.get("version") if isinstance(said, Mapping) else None
    return f"version {version}" if version else "version unknown"


def _painter(plot: Path) -> Painter:
    if not plot.absolute().parent.is_dir():
        raise UsageError(f"there is no directory {plot.absolute().parent}")
    try:
        from omlx_server.cli.bench.plot import save
    except ModuleNotFoundError:
        hint = "pip install 'omlx-server[bench]'"
        raise UsageError("--plot needs matplotlib", hint=hint) from None
    return save


def _draw(painter: Painter, result: Result, before: Result | None, plot: Path) -> None:
    try:
        painter(result, before, plot)
    except OSError as error:
        raise OmlxError(f"{plot} can't be written: {error.strerror}") from None
