"""`omlx-server search`: lists the short names of usual models, and searches the hub."""

import sys
from collections.abc import Sequence
from pathlib import Path

from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from omlx_server.cli.models.fit import LONG
from omlx_server.cli.models.list import console, make_table
from omlx_server.cli.shell.options import load_settings, memory_limit
from omlx_server.cli.shell.output import report_error, show_json, visible
from omlx_server.models.offers.offers import ModelOffer, find_offers


def run(*, text: str, as_json: bool, config: Path | None, sets: Sequence[str]) -> int:
    settings = load_settings(config, sets).settings
    limit = memory_limit(settings)
    offers, error = find_offers(text, settings.models, limit)
    if error is None or (offers and not as_json):
        _print_offers(offers, as_json=as_json)
    if error is not None:
        sys.stdout.flush()
        return report_error(error, as_json=as_json)
    if offers and not as_json:
        print(f"fits: {decimal(limit)} of memory has room for {LONG}")
        print("tight: only for short conversations")
    return 0


def _print_offers(offers: Sequence[ModelOffer], *, as_json: bool) -> None:
    if as_json:
        show_json({"models": offers})
    elif offers:
        console().print(_table(offers))
    else:
        print("The hub has no such model for MLX. `omlx-server search` lists the usual ones.")


def _table(offers: Sequence[ModelOffer]) -> Table:
    has_contexts = any(offer["context_length"] for offer in offers)
    has_downloads = any(offer["downloads"] is not None for offer in offers)
    columns = ["name", "size"]
    columns += ["context"] if has_contexts else []
    columns += ["downloads"] if has_downloads else []
    table = make_table(*columns, "fit")
    table.show_edge = False  # the longest usual name stands in 80 columns
    for offer in offers:
        size = decimal(offer["bytes"]) if offer["bytes"] else ""
        cells: list[Text | str] = [_name_cell(offer), size]
        if has_contexts:
            cells.append(f"{offer['context_length'] or ''}")
        if has_downloads:
            cells.append("" if offer["downloads"] is None else f"{offer['downloads']:,}")
        table.add_row(*cells, "gated" if offer["gated"] else offer["fit"] or "")
    return table


def _name_cell(offer: ModelOffer) -> Text:
    text = Text(visible(offer["name"]))
    if offer["here"]:
        text.append(" (here)", "dim")
    if offer["model"] != offer["name"]:
        is_packed = offer["download_bytes"] != offer["bytes"]
        size = f", {decimal(offer['download_bytes'] or 0)} to download" if is_packed else ""
        text.append(f"\n  {visible(offer['model'])}{size}", "dim")
    if offer["abilities"]:
        text.append(f"\n  {', '.join(offer['abilities'])}", "dim")
    if offer["problem"]:
        text.append(f"\n  {visible(offer['problem'])}", "yellow")
    return text
