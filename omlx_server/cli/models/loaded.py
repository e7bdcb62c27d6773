"""`omlx-server ps`, `load`, `unload` and `pin`."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from omlx_server.cli.models.list import console, make_table
from omlx_server.cli.models.server import fetch_models, models_in, post_and_wait
from omlx_server.cli.server_client.http import ServerClient
from omlx_server.cli.shell.output import show_json, show_result, visible

_MINUTE, _HOUR = 60, 3600
_STILL_PINNED = """
It is still pinned: once a request or `omlx-server load` has brought it back, it stays. One that the
config pins comes with the next start, too. `omlx-server pin NAME --off` takes a pin back."""


def ps(server: ServerClient, *, as_json: bool) -> int:
    answer = fetch_models(server)
    items = models_in(answer)
    if as_json:
        show_json(answer)
        return 0
    console().print(_table(items))
    for item in items:
        if item.get("problem"):
            print(f"{_name_of(item, '?')} could not be loaded: {visible(str(item['problem']))}")
        if adapters := item.get("adapters"):
            names = ", ".join(visible(str(name)) for name in adapters)
            print(f"{_name_of(item, '?')} has adapters in memory: {names}")
    memory = answer.get("memory")
    if isinstance(memory, Mapping):
        weights, limit = _size_in_words(memory.get("weights")), _size_in_words(memory.get("limit"))
        print(f"Weights: {weights or '0 bytes'} of {limit or '?'}.")
    return 0


def load(server: ServerClient, *, name: str, as_json: bool) -> int:
    item = post_and_wait(server, "/admin/models/load", {"model": name})
    size = _size_in_words(item.get("weight_bytes"))
    words = f"{_name_of(item, name)} is loaded{f', {size} of weights' if size else ''}"
    if adapters := item.get("adapters"):
        words += f", with the adapters {', '.join(visible(str(adapter)) for adapter in adapters)}"
    show_result(item, [f"{words}."], as_json=as_json)
    return 0


def unload(server: ServerClient, *, name: str, as_json: bool) -> int:
    item = post_and_wait(server, "/admin/models/unload", {"model": name})
    words = f"{_name_of(item, name)} is not loaded any more."
    words += _STILL_PINNED if item.get("pinned") else ""
    show_result(item, [words], as_json=as_json)
    return 0


def pin(server: ServerClient, *, name: str, off: bool, as_json: bool) -> int:
    item = post_and_wait(server, "/admin/models/pin", {"model": name, "pinned": not off})
    what_follows = "may go when nobody uses it" if off else "stays"
    show_result(item, [f"{_name_of(item, name)} {what_follows}."], as_json=as_json)
    return 0


def _name_of(item: Mapping[str, Any], asked_for: str) -> str:
    return visible(str(item.get("name") or asked_for))


def _table(items: Sequence[Mapping[str, Any]]) -> Table:
    table = make_table("name", "kind", "state", "memory", "in use", "idle", "pinned")
    for item in items:
        cells = (
            f"{item.get('name', '?')}{' (default)' if item.get('default') else ''}",
            str(item.get("kind", "?")),
            str(item.get("state", "?")),
            _size_in_words(item.get("weight_bytes")),
            str(item.get("in_use", "")),
            _time_in_words(item.get("idle_seconds")),
            "yes" if item.get("pinned") else "",
        )
        table.add_row(*(Text(visible(cell)) for cell in cells))
    return table


def _size_in_words(nbytes: object) -> str:
    return decimal(nbytes) if isinstance(nbytes, int) and nbytes else ""


def _time_in_words(seconds: object) -> str:
    if not isinstance(seconds, int | float):
        return ""
    if seconds < _MINUTE:
        return f"{seconds:.0f} s"
    return f"{seconds / _MINUTE:.0f} min" if seconds < _HOUR else f"{seconds / _HOUR:.1f} h"
