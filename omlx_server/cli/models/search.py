"""`omlx-server search`: lists the short names of usual models, and searches the hub."""

import platform
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from omlx_server.cli.models.list import console
from omlx_server.cli.shell.options import load_settings
from omlx_server.cli.shell.output import report, show_json, visible
from omlx_server.errors import FetchFailed
from omlx_server.models import layout
from omlx_server.models.catalogue import MINILM, STARTER
from omlx_server.models.hub.search import HubModel, search
from omlx_server.models.hub.short_names import SHORT_NAMES, matching
from omlx_server.models.locate import Located, installed

_MOST = 20


@dataclass(frozen=True, slots=True)
class _Row:
    """A model that `pull` takes by its `name`. `size` and `download` in bytes, `context` in
    tokens. None: unknown."""

    name: str
    model: str
    size: int | None
    is_here: bool
    context: int | None = None
    downloads: int | None = None
    is_gated: bool = False
    problem: str = ""
    download: int | None = None


def run(*, text: str, as_json: bool, config: Path | None, sets: Sequence[str]) -> int:
    settings = load_settings(config, sets).settings
    models = installed(settings.models)
    local_names = {name for model in models for name in model.names}
    rows = [*_own(text, models, local_names), *_short(text, local_names)]
    if not text:
        _show(rows, as_json=as_json)
        return 0
    try:
        hits = search(text, _MOST)
    except FetchFailed as error:
        if not as_json and rows:
            _show(rows, as_json=False)
            sys.stdout.flush()
        return report(error, as_json=as_json)
    by_name = {hit.name: hit for hit in hits}
    others = by_name.keys() - {row.model for row in rows}
    rows += [_Row(name, name, None, name in local_names) for name in by_name if name in others]
    _show([_with_hub_facts(row, by_name.get(row.model)) for row in rows], as_json=as_json)
    return 0


def _own(text: str, models: Iterable[Located], local_names: set[str]) -> list[_Row]:
    minilm = MINILM.files["model.safetensors"]
    models_and_bytes = (
        (STARTER, _starter_bytes(models), STARTER.source.wheel_bytes),
        (MINILM, minilm.member_bytes, minilm.wheel_bytes),
    )
    rows = [
        _Row(one.name, one.full_name, size, one.name in local_names, one.context, download=download)
        for one, size, download in models_and_bytes
    ]
    return [row for row in rows if text.lower() in f"{row.name} {row.model}".lower()]


def _starter_bytes(models: Iterable[Located]) -> int:
    path = next((model.path for model in models if STARTER.name in model.names), None)
    if path is not None:
        return layout.weight_bytes(path)
    has_gpu = sys.platform == "darwin" and platform.machine() == "arm64"
    return STARTER.weight_bytes["8bit" if has_gpu else "f32"]


def _short(text: str, local_names: set[str]) -> list[_Row]:
    rows = matching(text) if text else SHORT_NAMES
    return [
        _Row(row.name, row.repo_id, row.disk_bytes, row.repo_id in local_names, row.context)
        for row in rows
    ]


def _with_hub_facts(row: _Row, hit: HubModel | None) -> _Row:
    if hit is None:
        return row
    return replace(
        row,
        size=hit.weight_bytes or row.size,
        downloads=hit.downloads,
        is_gated=hit.is_gated,
        problem=hit.problem,
    )


def _show(rows: Sequence[_Row], *, as_json: bool) -> None:
    if as_json:
        show_json({"models": [_shape(row) for row in rows]})
    elif rows:
        console().print(_table(rows))
    else:
        print("The hub has no such model for MLX. `omlx-server search` lists the usual ones.")


def _shape(row: _Row) -> dict[str, object]:
    return {
        "name": row.name,
        "model": row.model,
        "bytes": row.size,
        "download_bytes": row.download or row.size,
        "context_length": row.context,
        "downloads": row.downloads,
        "here": row.is_here,
        "gated": row.is_gated,
        "problem": row.problem or None,
    }


def _table(rows: Sequence[_Row]) -> Table:
    has_downloads = any(row.downloads is not None for row in rows)
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("name", overflow="fold")
    table.add_column("size", no_wrap=True, justify="right")
    if any(row.context for row in rows):
        table.add_column("context", no_wrap=True, justify="right")
    if has_downloads:
        table.add_column("downloads", no_wrap=True, justify="right")
    table.add_column("", no_wrap=True)
    for row in rows:
        cells: list[Text | str] = [_named(row), decimal(row.size) if row.size else ""]
        if any(row.context for row in rows):
            cells.append(f"{row.context}" if row.context else "")
        if has_downloads:
            cells.append("" if row.downloads is None else f"{row.downloads:,}")
        table.add_row(*cells, "here" if row.is_here else "gated" if row.is_gated else "")
    return table


def _named(row: _Row) -> Text:
    text = Text(visible(row.name))
    if row.model != row.name:
        fetched = f", {decimal(row.download)} to download" if row.download else ""
        text.append(f"\n  {visible(row.model)}{fetched}", "dim")
    if row.problem:
        text.append(f"\n  {visible(row.problem)}", "yellow")
    return text
