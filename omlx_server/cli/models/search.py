"""`omlx-server search`: lists the short names of usual models, and searches the hub."""

import platform
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from omlx_server.cli.models.list import console, make_table
from omlx_server.cli.shell.options import load_settings
from omlx_server.cli.shell.output import report_error, show_json, visible
from omlx_server.errors import FetchFailed
from omlx_server.models import layout
from omlx_server.models.catalogue import MINILM, STARTER
from omlx_server.models.hub.names import SHORT_NAMES, matching
from omlx_server.models.hub.search import HubModel, search
from omlx_server.models.locate import Located, installed

_MOST_HITS = 20


@dataclass(frozen=True, slots=True)
class _Row:
    """A model that `pull` takes by its `name`, for JSON. `context_length` in tokens. None: unknown.
    Without `download_bytes` all `bytes` are downloaded."""

    name: str
    model: str
    bytes: int | None
    download_bytes: int | None
    context_length: int | None
    downloads: int | None = None
    here: bool = False
    gated: bool = False
    problem: str | None = None


def run(*, text: str, as_json: bool, config: Path | None, sets: Sequence[str]) -> int:
    settings = load_settings(config, sets).settings
    models = installed(settings.models)
    local_names = {name for model in models for name in model.names}
    rows = [*_own_rows(text, models, local_names), *_short_name_rows(text, local_names)]
    if not text:
        _print_rows(rows, as_json=as_json)
        return 0
    try:
        hits = {hit.name: hit for hit in search(text, _MOST_HITS)}
    except FetchFailed as error:
        if not as_json and rows:
            _print_rows(rows, as_json=False)
            sys.stdout.flush()
        return report_error(error, as_json=as_json)
    listed = {row.model for row in rows}
    rows += [
        _Row(name, name, None, None, None, here=name in local_names)
        for name in hits
        if name not in listed
    ]
    _print_rows([_with_hub_facts(row, hits.get(row.model)) for row in rows], as_json=as_json)
    return 0


def _own_rows(text: str, models: Iterable[Located], local_names: set[str]) -> list[_Row]:
    minilm = MINILM.files["model.safetensors"]
    models_and_bytes = (
        (STARTER, _starter_bytes(models), STARTER.source.wheel_bytes),
        (MINILM, minilm.member_bytes, minilm.wheel_bytes),
    )
    rows = [
        _Row(row.name, row.full_name, size, download, row.context, here=row.name in local_names)
        for row, size, download in models_and_bytes
    ]
    return [row for row in rows if text.lower() in f"{row.name} {row.model}".lower()]


def _starter_bytes(models: Iterable[Located]) -> int:
    path = next((model.path for model in models if STARTER.name in model.names), None)
    if path is not None:
        return layout.weight_bytes(path)
    has_gpu = sys.platform == "darwin" and platform.machine() == "arm64"
    return STARTER.weight_bytes["8bit" if has_gpu else "f32"]


def _short_name_rows(text: str, present: set[str]) -> list[_Row]:
    rows = matching(text) if text else SHORT_NAMES
    return [
        _Row(row.name, row.repo_id, row.disk_bytes, None, row.context, here=row.repo_id in present)
        for row in rows
    ]


def _with_hub_facts(row: _Row, hit: HubModel | None) -> _Row:
    if hit is None:
        return row
    return replace(
        row,
        bytes=hit.weight_bytes or row.bytes,
        downloads=hit.downloads,
        gated=hit.is_gated,
        problem=hit.problem or None,
    )


def _print_rows(rows: Sequence[_Row], *, as_json: bool) -> None:
    if as_json:
        shapes = [asdict(row) | {"download_bytes": row.download_bytes or row.bytes} for row in rows]
        show_json({"models": shapes})
    elif rows:
        console().print(_table(rows))
    else:
        print("The hub has no such model for MLX. `omlx-server search` lists the usual ones.")


def _table(rows: Sequence[_Row]) -> Table:
    has_contexts = any(row.context_length for row in rows)
    has_downloads = any(row.downloads is not None for row in rows)
    columns = ["name", "size"]
    columns += ["context"] if has_contexts else []
    columns += ["downloads"] if has_downloads else []
    table = make_table(*columns, "")
    for row in rows:
        cells: list[Text | str] = [_name_cell(row), decimal(row.bytes) if row.bytes else ""]
        if has_contexts:
            cells.append(f"{row.context_length}" if row.context_length else "")
        if has_downloads:
            cells.append("" if row.downloads is None else f"{row.downloads:,}")
        if row.here:
            table.add_row(*cells, "here")
        else:
            table.add_row(*cells, "gated" if row.gated else "")
    return table


def _name_cell(row: _Row) -> Text:
    text = Text(visible(row.name))
    if row.model != row.name:
        download = f", {decimal(row.download_bytes)} to download" if row.download_bytes else ""
        text.append(f"\n  {visible(row.model)}{download}", "dim")
    if row.problem:
        text.append(f"\n  {visible(row.problem)}", "yellow")
    return text
