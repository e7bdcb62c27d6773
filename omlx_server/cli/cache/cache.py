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
from omlx_server.cli.shell.output import count_blocks, show_json, visible
from omlx_server.cli.shell.progress import open_display
from omlx_server.errors import OmlxError, UsageError
from omlx_server.settings import CacheSettings
from omlx_server.settings.types import parse_size
from omlx_server.store.description import NamespaceUse
from omlx_server.store.files import Files, StoredFile
from omlx_server.store.inventory import (
    UNREADABLE,
    CheckedBlock,
    ColdDirectory,
    InUse,
    Inventory,
    blocks_to_evict,
)
from omlx_server.store.mediums.medium import MediumError

_LAST_SECOND = datetime(9999, 12, 31, tzinfo=UTC).timestamp()
_THERE = {True: "there", False: "gone", None: "unknown"}
_NUMBERS = ("blocks", "size")
_INSTEAD = "stop it, or ask it to forget: POST /v1/cache/reset"


def stats(cache: CacheSettings, *, as_json: bool) -> int:
    with opened(cache) as cold:
        uses = cold.uses()
    if as_json:
        show_json(_document(cold.root, cache.cold_cache_max_bytes, uses))
        return 0
    if not uses:
        return _say_nothing_is_there(cold.root)
    Console().print(_table(uses))
    count, nbytes = _totals(uses)
    budget = decimal(cache.cold_cache_max_bytes)
    print(f"{count_blocks(count)}, {decimal(nbytes)} of {budget}, in {cold.root}")
    return 0


def verify(cache: CacheSettings, *, delete: bool) -> int:
    with opened(cache) as cold:
        blocks = cold.blocks()
        if not blocks:
            return _say_nothing_is_there(cold.root)
        if not cold.has_secret():
            print("The secret is missing or damaged: no stored block can be used any more.")
        if not delete:
            return _verdict(len(blocks), _check(cold, blocks), removed=False)
        with cold.writing() as files:
            damaged = _check(cold, blocks)
            for checked in damaged:
                if checked.reason != UNREADABLE:
                    files.delete(checked.block.name)
        return _verdict(len(blocks), damaged, removed=True)


def clear(cache: CacheSettings, *, model: str | None, yes: bool) -> int:
    with opened(cache) as cold:
        uses = cold.uses()
        if not uses:
            return _say_nothing_is_there(cold.root)
        chosen = uses if model is None else of_model(uses, model)
        if not yes and not _confirmed(chosen, cold.root):
            print("Nothing was removed.")
            return 1
        with cold.writing() as files:
            removed = [file for use in chosen for file in files.clear(use.id)]
    nbytes = sum(file.nbytes for file in removed)
    print(f"Removed {count_blocks(len(removed))}, {decimal(nbytes)}, from {cold.root}.")
    return 0


def trim(cache: CacheSettings, *, to: str | None) -> int:
    target = cache.cold_cache_max_bytes if to is None else parse_size(to)
    if not isinstance(target, int):
        raise UsageError(f"--to {to}: expected a size", hint="for example --to 5GB")
    with opened(cache) as cold:
        blocks = cold.blocks()
        if not blocks:
            return _say_nothing_is_there(cold.root)
        nbytes = sum(file.nbytes for file in blocks)
        if nbytes <= target:
            print(f"Nothing to remove: {decimal(nbytes)} of {decimal(target)} are in use.")
            return 0
        with cold.writing() as files:
            removed = _trim(cold, files, target)
    left = nbytes - sum(file.nbytes for file in removed)
    remainder = f"{decimal(left)} are left{' because they are pinned' if left > target else ''}."
    print(f"Removed {count_blocks(len(removed))}, {decimal(nbytes - left)}; {remainder}")
    return 0


def cache_settings(
    config: Path | None, sets: Sequence[str] | None, directory: Path | None
) -> CacheSettings:
    flags = {"cache.cold_dir": str(directory) if directory else None}
    return load_settings(config, sets or (), flags).settings.cache


@contextmanager
def opened(
    cache: CacheSettings, *, hint: str = _INSTEAD, what: str = "removed"
) -> Iterator[ColdDirectory]:
    """Yield the cold tier's directory. Raises UsageError if a running server holds the lock, so
    that nothing can be `what`, and OmlxError."""
    cold = ColdDirectory(cache.cold_dir)
    try:
        yield cold
    except InUse:
        raise UsageError(
            f"a running server uses {cold.root}, so nothing can be {what} from outside", hint=hint
        ) from None
    except MediumError as error:
        raise OmlxError(f"{cold.root} can't be used: {error}") from None


def of_model(uses: list[NamespaceUse], model: str) -> list[NamespaceUse]:
    """Return the namespaces of `model`. Raises UsageError if there are none."""
    chosen = [use for use in uses if use.is_of(model)]
    if not chosen:
        raise UsageError(f"nothing is stored for {model}", hint=f"there is {_names(uses)}")
    return chosen


def _say_nothing_is_there(root: Path) -> int:
    print(f"Nothing is stored in {root}.")
    return 0


def _table(uses: list[NamespaceUse]) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 1, 0))
    table.add_column("model, namespace, path")
    for column in ("blocks", "size", "last use", "model is"):
        table.add_column(column, no_wrap=True, justify="right" if column in _NUMBERS else "left")
    for use in uses:
        names = (use.model or "?", use.id, use.path or "?")
        text = Text("\n".join(visible(name) for name in names), overflow="fold")
        last_use = "never"
        if use.last_used is not None:
            last_use = _date(use.last_used).astimezone().strftime("%Y-%m-%d %H:%M")
        presence = _THERE[use.model_is_there]
        table.add_row(text, str(use.blocks), decimal(use.nbytes), last_use, presence)
    return table


def _document(root: Path, budget: int, uses: list[NamespaceUse]) -> dict[str, object]:
    count, nbytes = _totals(uses)
    return {
        "directory": str(root),
        "budget_bytes": budget,
        "blocks": count,
        "bytes": nbytes,
        "namespaces": [_shape(use) for use in uses],
    }


def _shape(use: NamespaceUse) -> dict[str, object]:
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


def _date(moment: float) -> datetime:
    return datetime.fromtimestamp(min(max(moment, 0), _LAST_SECOND), UTC)


def _check(cold: ColdDirectory, blocks: list[StoredFile]) -> list[CheckedBlock]:
    damaged, done, total = [], 0, sum(block.nbytes for block in blocks)
    with open_display() as display:
        for checked in cold.check(blocks):
            done += checked.block.nbytes
            display.update("checking blocks", done, total)
            if checked.reason:
                damaged.append(checked)
    return damaged


def _verdict(count: int, damaged: list[CheckedBlock], *, removed: bool) -> int:
    if not damaged:
        print(f"{count_blocks(count)} checked: all as they were written.")
        return 0
    print(f"{count_blocks(count)} checked: {len(damaged)} damaged.")
    for reason, times in sorted(Counter(checked.reason for checked in damaged).items()):
        gone = removed and reason != UNREADABLE
        print(f"  {reason}: {count_blocks(times)}{', removed' if gone else ''}")
    left = [c for c in damaged if not removed or c.reason == UNREADABLE]
    if left and not removed:
        print("`omlx-server cache verify --delete` removes them; a server does when it meets them.")
    return 1 if left else 0


def _confirmed(chosen: list[NamespaceUse], root: Path) -> bool:
    count, nbytes = _totals(chosen)
    what = f"{count_blocks(count)} of {_names(chosen)} ({decimal(nbytes)})"
    return stdin.agreed_to_remove(f"{what} from {root}")


def _names(uses: list[NamespaceUse]) -> str:
    return ", ".join(sorted({visible(use.model or use.id) for use in uses}))


def _trim(cold: ColdDirectory, files: Files, target: int) -> list[StoredFile]:
    stock = take_stock(cold)
    by_name = {block.name: block for block in stock.blocks}
    removed = [by_name[name] for name in blocks_to_evict(stock, target)]
    for block in removed:
        files.delete(block.name)
    return removed


def take_stock(cold: ColdDirectory) -> Inventory:
    blocks, records = cold.blocks(), []
    with open_display() as display:
        for done, record in enumerate(cold.records(blocks), start=1):
            records.append(record)
            display.update("reading what blocks hold", done, len(blocks))
    gone_models = [use.id for use in cold.uses() if use.model_is_there is False]
    return Inventory(blocks, records, gone_models, cold.pins())
