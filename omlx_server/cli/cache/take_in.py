"""`omlx-server cache import`: an archive's blocks into the cold tier of this machine.

All of it is checked before anything is kept. Needs the directory for itself.
"""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from rich.filesize import decimal

from omlx_server.cli.cache.cache import count_blocks, explained, take_stock, visible
from omlx_server.cli.shell.output import show_json
from omlx_server.cli.shell.progress import open_display
from omlx_server.core.blocks.keys import namespace_id
from omlx_server.core.blocks.record import Record
from omlx_server.errors import OmlxError, UsageError
from omlx_server.settings import Cache
from omlx_server.store.archives.archive import About, read_archive
from omlx_server.store.archives.tar import BadArchive
from omlx_server.store.description import Description
from omlx_server.store.directory import ColdDirectory, Use, room_for
from omlx_server.store.files import Files, Found
from omlx_server.store.format import encode
from omlx_server.store.mediums.medium import Name
from omlx_server.store.secret import secret

_INSTEAD = "stop it, or let it do that itself: POST /v1/cache/import"


def run(cache: Cache, *, archive: str, force: bool, as_json: bool) -> int:
    cold = ColdDirectory(cache.cold_dir)
    with explained(cold.root, what="added", hint=_INSTEAD), _open(archive) as source:
        found = _check(archive, source, cache)
        warnings = _warnings(found.about, cold.uses(), cache, force=force)
        with cold.writing(min_free_bytes=cache.cold_min_free_disk) as files:
            removed = _make_room(cold, files, cache, found)
            added = _keep(cold, files, found, archive, source)
    if as_json:
        document = _document(archive, cold, found, added, removed)
        show_json({**document, "warnings": warnings})
        return 0
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)
    print(_words(cold, found, added, removed))
    return 0


# --- The archive ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Content:
    """What an archive holds. `blocks` and states with the sizes of their files, in order."""

    about: About
    tokens: int
    states: int
    blocks: list[tuple[Record, int]]

    @property
    def nbytes(self) -> int:
        return sum(nbytes for _, nbytes in self.blocks)

    def name(self, record: Record) -> Name:
        return Name.of(namespace_id(self.about.namespace), record.key)


def _open(archive: str) -> BinaryIO:
    path = Path(archive)
    if path.exists() and not path.is_file():
        raise UsageError(f"{archive} is not a file")
    try:
        return path.open("rb")
    except OSError as error:
        raise UsageError(f"{archive} can't be read: {error.strerror or error}") from None


def _check(archive: str, source: BinaryIO, cache: Cache) -> _Content:
    """Read all of it, and keep nothing but its records."""
    blocks, done = [], 0
    with _named(archive), open_display() as display:
        found = read_archive(source, max_bytes=sys.maxsize)
        total, limit = sum(found.sizes.values()), cache.cold_cache_max_bytes
        if total > limit:
            raise UsageError(
                f"{archive} has {decimal(total)}, and the cold tier {decimal(limit)} at most",
                hint=f"--set cache.cold_cache_max_bytes={total}, for servers as well",
            )
        for record, _ in found:
            blocks.append((record, found.sizes[record.key]))
            done += found.sizes[record.key]
            display.update("checking the archive", done, total)
    return _Content(found.about, found.tokens, found.states, blocks)


@contextmanager
def _named(archive: str) -> Iterator[None]:
    """What is wrong with it, with its name."""
    try:
        yield
    except BadArchive as error:
        raise OmlxError(f"{archive} can't be used: {error}") from None
    except OSError as error:
        raise OmlxError(f"{archive} can't be read: {error.strerror or error}") from None


# --- Who would use it ----------------------------------------------------------------------------


def _warnings(about: About, uses: list[Use], cache: Cache, *, force: bool) -> list[str]:
    """What keeps a server of this machine from using the blocks. Raises OmlxError where nothing
    will ever change that, unless `force`."""
    warnings = []
    known = [use for use in uses if use.id == namespace_id(about.namespace) and use.description]
    model = visible(about.model or "?")
    if not known:
        difference = _difference(about, uses)
        if difference:
            problem = f"{model} on this machine {difference}, so these blocks would never be used"
            if not force:
                raise OmlxError(f"{problem} (--force imports them all the same)")
            warnings.append(problem)
        else:
            warnings.append(
                f"no server has used {model} with this cache yet, so it is not known whether these "
                "blocks fit it: they do if it is the very model that they were made with, with the "
                "same settings. If not, no server ever uses them, and `omlx-server cache clear "
                f"--model {namespace_id(about.namespace)}` removes them"
            )
    elif known[0].model_is_there is False:
        warnings.append(f"{model} is gone from {visible(known[0].path)}")
    elsewhere = {
        "enabled is off": not cache.enabled,
        "hot_cache_only is on": cache.hot_cache_only,
        "remote is set": bool(cache.remote.reveal()),
    }
    for setting in (setting for setting, counts in elsewhere.items() if counts):
        warnings.append(f"cache.{setting}: a server with these settings does not look here")
    return warnings


def _difference(about: About, uses: list[Use]) -> str:
    """How the model of that name differs here; empty when there is none."""
    theirs = _Namespace.of(about.namespace)
    ours = [
        _Namespace.of(use.description.namespace)
        for use in uses
        if use.description and use.is_of(about.model)
    ]
    if not ours:
        return ""
    if not (same := [space for space in ours if space.fingerprint == theirs.fingerprint]):
        return "has other weights, another tokenizer or another config"
    if not (same := [space for space in same if space.kv_format == theirs.kv_format]):
        return "keeps its KV cache in another format"
    return (
        f"has blocks of {same[0].block_size} tokens, not {theirs.block_size} (cache.block_tokens)"
    )


@dataclass(frozen=True, slots=True)
class _Namespace:
    """What a namespace is made of: see `core.prefix_cache`."""

    fingerprint: str
    kv_format: str
    block_size: str

    @classmethod
    def of(cls, namespace: str) -> "_Namespace":
        fingerprint, _, rest = namespace.partition("|")
        kv_format, _, block_size = rest.rpartition("|")
        return cls(fingerprint, kv_format, block_size)


# --- Into the directory --------------------------------------------------------------------------


def _make_room(cold: ColdDirectory, files: Files, cache: Cache, found: _Content) -> list[Found]:
    """Remove what has to go for it. Nothing is changed before it is known that this will do."""
    there = {block.name: block for block in cold.blocks()}
    coming = sum(nbytes for record, nbytes in found.blocks if found.name(record) not in there)
    gone: list[Found] = []
    if sum(block.nbytes for block in there.values()) + coming > cache.cold_cache_max_bytes:
        names = room_for(found.blocks, take_stock(cold), cache.cold_cache_max_bytes)
        if names is None:
            raise OmlxError(f"there is no room in {cold.root}: what is pinned there stays")
        gone = [there[name] for name in names]
    free = files.free_bytes() + sum(block.nbytes for block in gone)
    if free - coming < cache.cold_min_free_disk:
        least = decimal(cache.cold_min_free_disk)
        raise OmlxError(
            f"{decimal(coming)} would leave less than {least} of the disk free "
            "(cache.cold_min_free_disk)"
        )
    for block in gone:
        files.delete(block.name)
    return gone


def _keep(
    cold: ColdDirectory, files: Files, found: _Content, archive: str, source: BinaryIO
) -> int:
    """Write what is not there yet, parents first; returns how many blocks and states that were.
    The others are as new as these now."""
    about, added = found.about, 0
    key = secret(cold.root)
    files.write_description(
        Description(about.namespace, about.model, "", about.block_size, time.time())
    )
    source.seek(0)
    with _named(archive), open_display() as display:
        again = read_archive(source, max_bytes=sys.maxsize)
        if again.about != about:
            raise BadArchive("it changed while it was read")
        for done, (record, packed) in enumerate(again, start=1):
            name = found.name(record)
            if cold.read(name) is not None:
                files.touch(name, time.time())
            else:
                files.put(name, encode(record, packed, key))
                added += 1
            display.update("importing", done, len(found.blocks))
    return added


# --- What is said --------------------------------------------------------------------------------


def _document(
    archive: str, cold: ColdDirectory, found: _Content, added: int, removed: list[Found]
) -> dict[str, object]:
    return {
        "archive": archive,
        "directory": str(cold.root),
        "model": found.about.model or None,
        "namespace": namespace_id(found.about.namespace),
        "tokens": found.tokens,
        "blocks": len(found.blocks) - found.states,
        "states": found.states,
        "bytes": found.nbytes,
        "imported": added,
        "already_there": len(found.blocks) - added,
        "removed": len(removed),
    }


def _words(cold: ColdDirectory, found: _Content, added: int, removed: list[Found]) -> str:
    what = f"{found.tokens} tokens of {visible(found.about.model or '?')}"
    text = f"{count_blocks(len(found.blocks))} with {what}, {decimal(found.nbytes)}: "
    before = len(found.blocks) - added
    text += f"{added} imported into {cold.root}, {before} there already."
    if removed:
        nbytes = sum(block.nbytes for block in removed)
        text += f" To make room, {count_blocks(len(removed))} of {decimal(nbytes)} were removed."
    return text
