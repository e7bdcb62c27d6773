"""`omlx-server cache stats`, `verify`, `clear` and `trim`."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from omlx_server.cli.shell import stdin
from omlx_server.cli.shell.options import load_settings
from omlx_server.cli.shell.output import counted, show_json, visible
from omlx_server.cli.shell.progress import open_display
from omlx_server.errors import OmlxError, UsageError
from omlx_server.settings import CacheSettings
from omlx_server.settings.types import number_without_unit, parse_size
from omlx_server.store.files import Files, NamespaceUse, StoredFile
from omlx_server.store.inventory import (
    UNREADABLE,
    CheckedBlock,
    ColdDirectory,
    InUse,
    Inventory,
    blocks_to_evict,
)
from omlx_server.store.mediums.medium import MediumError

# The last time that datetime can hold: a damaged file may claim a later one.
_LAST_SECOND = datetime(9999, 12, 31, tzinfo=UTC).timestamp()
_PRESENCE = {True: "there", False: "gone", None: "unknown"}
_NUMERIC = ("blocks", "size")
_HINT = "stop it, or ask it to forget: POST /v1/cache/reset"


def stats(cache: CacheSettings, *, as_json: bool) -> int:
    with open_cold_tier(cache) as cold:
        uses = cold.uses()
    if as_json:
        show_json(_stats_json(cold.root, cache.cold_cache_max_bytes, uses))
        return 0
    if not uses:
        return _say_nothing_is_there(cold.root)
    Console().print(_table(uses))
    count, nbytes = _totals(uses)
    budget = decimal(cache.cold_cache_max_bytes)
    print(f"{counted(count, 'block')}, {decimal(nbytes)} of {budget}, in {cold.root}")
    return 0


def verify(cache: CacheSettings, *, delete: bool) -> int:
    with open_cold_tier(cache) as cold:
        blocks = cold.blocks()
        if not blocks:
            return _say_nothing_is_there(cold.root)
        if not cold.has_secret():
            print("The secret is missing or damaged: no stored block can be used any more.")
        if not delete:
            return _report_damage(len(blocks), _find_damaged(cold, blocks), are_removed=False)
        with cold.writing() as files:
            damaged = _find_damaged(cold, blocks)
            for checked in damaged:
                if checked.reason != UNREADABLE:
                    files.delete(checked.block.name)
        return _report_damage(len(blocks), damaged, are_removed=True)


def clear(cache: CacheSettings, *, model: str | None, yes: bool) -> int:
    with open_cold_tier(cache) as cold:
        uses = cold.uses()
        if not uses:
            return _say_nothing_is_there(cold.root)
        chosen = uses if model is None else namespaces_of_model(uses, model)
        count, nbytes = _totals(chosen)
        what = f"{counted(count, 'block')} of {_model_names(chosen)} ({decimal(nbytes)})"
        if not yes and not stdin.confirm_removal(f"{what} from {cold.root}"):
            print("Nothing was removed.")
            return 1
        with cold.writing() as files:
            removed = [file for use in chosen for file in files.clear(use.id)]
    size = decimal(sum(file.nbytes for file in removed))
    print(f"Removed {counted(len(removed), 'block')}, {size}, from {cold.root}.")
    return 0


def trim(cache: CacheSettings, *, to: str | None) -> int:
    target = cache.cold_cache_max_bytes if to is None else parse_size(to)
    if not isinstance(target, int) or number_without_unit(to):
        raise UsageError(f"--to {to}: expected a size with its unit", hint="for example --to 5GB")
    with open_cold_tier(cache) as cold:
        blocks = cold.blocks()
        if not blocks:
            return _say_nothing_is_there(cold.root)
        nbytes = sum(file.nbytes for file in blocks)
        if nbytes <= target:
            print(f"Nothing to remove: {decimal(nbytes)} of {decimal(target)} are in use.")
            return 0
        with cold.writing() as files:
            removed = _remove_least_needed(cold, files, target)
    left_bytes = nbytes - sum(file.nbytes for file in removed)
    reason = " because they are pinned" if left_bytes > target else ""
    remainder = f"{decimal(left_bytes)} are left{reason}."
    print(f"Removed {counted(len(removed), 'block')}, {decimal(nbytes - left_bytes)}; {remainder}")
    return 0


def cache_settings(
    config: Path | None, sets: Sequence[str] | None, directory: Path | None
) -> CacheSettings:
    flags = {"cache.cold_dir": str(directory) if directory else None}
    return load_settings(config, sets or (), flags).settings.cache


@contextmanager
def open_cold_tier(
    cache: CacheSettings, *, hint: str = _HINT, change: str = "removed"
) -> Iterator[ColdDirectory]:
    """Yield the cold tier's directory. Raises OmlxError, and UsageError if a server uses it."""
    cold = ColdDirectory(cache.cold_dir)
    try:
        yield cold
    except InUse:
        raise UsageError(
            f"a running server uses {cold.root}, so nothing can be {change} from outside", hint=hint
        ) from None
    except MediumError as error:
        raise OmlxError(f"{cold.root} can't be used: {error}") from None


def namespaces_of_model(uses: list[NamespaceUse], model: str) -> list[NamespaceUse]:
    """Return the namespaces of `model`. Raises UsageError if there are none."""
    chosen = [use for use in uses if use.is_of(model)]
    if not chosen:
        raise UsageError(f"nothing is stored for {model}", hint=f"there is {_model_names(uses)}")
    return chosen


def _say_nothing_is_there(root: Path) -> int:
    print(f"Nothing is stored in {root}.")
    return 0


def _table(uses: list[NamespaceUse]) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 1, 0))
    table.add_column("model, namespace, path")
    for column in ("blocks", "size", "last use", "model is"):
        table.add_column(column, no_wrap=True, justify="right" if column in _NUMERIC else "left")
    for use in uses:
        names = (use.model or "?", use.id, use.path or "?")
        text = Text("\n".join(visible(name) for name in names), overflow="fold")
        last_use = "never"
        if use.last_used is not None:
            last_use = _date(use.last_used).astimezone().strftime("%Y-%m-%d %H:%M")
        presence = _PRESENCE[use.model_is_there]
        table.add_row(text, str(use.blocks), decimal(use.nbytes), last_use, presence)
    return table


def _stats_json(root: Path, budget_bytes: int, uses: list[NamespaceUse]) -> dict[str, object]:
    count, nbytes = _totals(uses)
    return {
        "directory": str(root),
        "budget_bytes": budget_bytes,
        "blocks": count,
        "bytes": nbytes,
        "namespaces": [_namespace_json(use) for use in uses],
    }


def _namespace_json(use: NamespaceUse) -> dict[str, object]:
    return {
        "id": use.id,
        "model": use.model or None,
        "path": use.path or None,
        "model_is_there": use.model_is_there,
        "blocks": use.blocks,
        "bytes": use.nbytes,
        "last_used": None if use.last_used is None else _date(use.last_used).isoformat(),
    }


def _totals(uses: list[NamespaceUse]) -> tuple[int, int]:
    return sum(use.blocks for use in uses), sum(use.nbytes for use in uses)


def _date(timestamp: float) -> datetime:
    return datetime.fromtimestamp(min(max(timestamp, 0), _LAST_SECOND), UTC)


def _find_damaged(cold: ColdDirectory, blocks: list[StoredFile]) -> list[CheckedBlock]:
    damaged = []
    checked_bytes, all_bytes = 0, sum(block.nbytes for block in blocks)
    with open_display() as display:
        for checked in cold.check(blocks):
            checked_bytes += checked.block.nbytes
            display.update("checking blocks", checked_bytes, all_bytes)
            if checked.reason:
                damaged.append(checked)
    return damaged


def _report_damage(count: int, damaged: list[CheckedBlock], *, are_removed: bool) -> int:
    """Print it; return 1 if any is left, as unreadable ones are, and 0 else."""
    if not damaged:
        print(f"{counted(count, 'block')} checked: all as they were written.")
        return 0
    print(f"{counted(count, 'block')} checked: {len(damaged)} damaged.")
    for reason, times in sorted(Counter(checked.reason for checked in damaged).items()):
        note = ", removed" if are_removed and reason != UNREADABLE else ""
        print(f"  {reason}: {counted(times, 'block')}{note}")
    if not are_removed:
        print("`omlx-server cache verify --delete` removes them; a server does when it meets them.")
        return 1
    return 1 if any(checked.reason == UNREADABLE for checked in damaged) else 0


def _model_names(uses: list[NamespaceUse]) -> str:
    return ", ".join(sorted({visible(use.model or use.id) for use in uses}))


def _remove_least_needed(cold: ColdDirectory, files: Files, target: int) -> list[StoredFile]:
    stock = take_stock(cold)
    by_name = {block.name: block for block in stock.blocks}
    removed = [by_name[name] for name in blocks_to_evict(stock, target)]
    for block in removed:
        files.delete(block.name)
    return removed


def take_stock(cold: ColdDirectory) -> Inventory:
    blocks, records = cold.blocks(), []
    with open_display() as display:
        for record in cold.records(blocks):
            records.append(record)
            display.update("reading what blocks hold", len(records), len(blocks))
    gone_models = [use.id for use in cold.uses() if use.model_is_there is False]
    return Inventory(blocks, records, gone_models, cold.pins())
