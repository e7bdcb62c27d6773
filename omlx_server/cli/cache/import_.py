"""`omlx-server cache import`: checks an archive, then writes its blocks into the cold tier."""

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from rich.filesize import decimal

from omlx_server.cli.cache.cache import open_cold_tier, take_stock
from omlx_server.cli.shell.output import counted, say, show_json, visible
from omlx_server.cli.shell.progress import open_display
from omlx_server.core.blocks.keys import namespace_id
from omlx_server.core.blocks.record import Record
from omlx_server.errors import OmlxError, UsageError, system_errors_as
from omlx_server.settings import CacheSettings
from omlx_server.store.archives.archive import ArchiveOrigin, Manifest, read_archive
from omlx_server.store.archives.tar import BadArchive
from omlx_server.store.block_file import encode
from omlx_server.store.files import Files, NamespaceDescription, NamespaceUse, StoredFile
from omlx_server.store.inventory import ColdDirectory, evictions_for
from omlx_server.store.mediums.medium import Name
from omlx_server.store.secret import load_secret

_HINT = "stop it, or let it do that itself: POST /v1/cache/import"


def run(cache: CacheSettings, *, archive: str, force: bool, as_json: bool) -> int:
    with open_cold_tier(cache, change="added", hint=_HINT) as cold, _open_file(archive) as source:
        manifest, blocks = _check_archive(archive, source, cache)
        warnings = [*_warnings_about_model(manifest.about, cold.uses(), force=force)]
        warnings += _warnings_about_settings(cache)
        with cold.writing(min_free_bytes=cache.cold_min_free_disk) as files:
            removed = _make_room(cold, files, cache, blocks)
            added = _write_blocks(cold, files, manifest.about, archive, source)
    document = _document(archive, cold, manifest, added, removed)
    if as_json:
        show_json({**document, "warnings": warnings})
        return 0
    for warning in warnings:
        say(f"warning: {warning}")
    print(_summary(document, removed))
    return 0


def _open_file(archive: str) -> BinaryIO:
    path = Path(archive)
    if path.exists() and not path.is_file():
        raise UsageError(f"{archive} is not a file")
    with system_errors_as(UsageError, f"{archive} can't be read"):
        return path.open("rb")


def _check_archive(
    archive: str, source: BinaryIO, cache: CacheSettings
) -> tuple[Manifest, list[tuple[Record, int]]]:
    """Read all of it; return its manifest, and the records of its blocks with their bytes."""
    blocks, checked_bytes = [], 0
    with _archive_errors(archive), open_display() as display:
        reader = read_archive(source, max_bytes=sys.maxsize)
        manifest = reader.manifest
        all_bytes, limit = sum(manifest.sizes.values()), cache.cold_cache_max_bytes
        if all_bytes > limit:
            raise UsageError(
                f"{archive} has {decimal(all_bytes)}, and the cold tier {decimal(limit)} at most",
                hint=f"--set cache.cold_cache_max_bytes={all_bytes}, for servers as well",
            )
        for record, _ in reader:
            nbytes = manifest.sizes[record.key]
            blocks.append((record, nbytes))
            checked_bytes += nbytes
            display.update("checking the archive", checked_bytes, all_bytes)
    return manifest, blocks


@contextmanager
def _archive_errors(archive: str) -> Iterator[None]:
    try:
        with system_errors_as(OmlxError, f"{archive} can't be read"):
            yield
    except BadArchive as error:
        raise OmlxError(f"{archive} can't be used: {error}") from None


def _warnings_about_model(
    origin: ArchiveOrigin, uses: list[NamespaceUse], *, force: bool
) -> Iterator[str]:
    """Yield why the blocks may never be used. Raises OmlxError if that is sure, unless `force`."""
    namespace = namespace_id(origin.namespace)
    model = visible(origin.model or "?")
    known_use = next((use for use in uses if use.id == namespace and use.description), None)
    if known_use is not None:
        if known_use.model_is_there is False:
            yield f"{model} is gone from {visible(known_use.path)}"
    elif difference := _difference_here(origin, uses):
        problem = f"{model} on this machine {difference}, so these blocks would never be used"
        if not force:
            raise OmlxError(f"{problem} (--force imports them all the same)")
        yield problem
    else:
        yield (
            f"no server has used {model} with this cache yet, so it is not known whether these "
            "blocks fit it: they do if it is the very model that they were made with, with the "
            "same settings. If not, no server ever uses them, and `omlx-server cache clear "
            f"--model {namespace}` removes them"
        )


def _warnings_about_settings(cache: CacheSettings) -> Iterator[str]:
    note = "a server with these settings does not look here"
    if not cache.enabled:
        yield f"cache.enabled is off: {note}"
    if cache.hot_cache_only:
        yield f"cache.hot_cache_only is on: {note}"
    if cache.remote.reveal():
        yield f"cache.remote is set: {note}"


def _difference_here(origin: ArchiveOrigin, uses: list[NamespaceUse]) -> str:
    """Return how the model of this name differs here; empty if unknown."""
    # A namespace is FINGERPRINT|KV_FORMAT|BLOCK_TOKENS.
    fingerprint = origin.namespace.partition("|")[0]
    fingerprint_and_format, _, their_block_tokens = origin.namespace.rpartition("|")
    ours = [
        use.description.namespace for use in uses if use.description and use.is_of(origin.model)
    ]
    if not ours:
        return ""
    ours = [name for name in ours if name.partition("|")[0] == fingerprint]
    if not ours:
        return "has other weights, another tokenizer or another config"
    ours = [name for name in ours if name.rpartition("|")[0] == fingerprint_and_format]
    if not ours:
        return "keeps its KV cache in another format"
    block_tokens = ours[0].rpartition("|")[2]
    return f"has blocks of {block_tokens} tokens, not {their_block_tokens} (cache.block_tokens)"


def _block_name(record: Record) -> Name:
    return Name.of(namespace_id(record.namespace), record.key)


def _make_room(
    cold: ColdDirectory, files: Files, cache: CacheSettings, blocks: list[tuple[Record, int]]
) -> list[StoredFile]:
    stored = {block.name: block for block in cold.blocks()}
    stored_bytes = sum(block.nbytes for block in stored.values())
    new_bytes = sum(nbytes for record, nbytes in blocks if _block_name(record) not in stored)
    removed: list[StoredFile] = []
    if stored_bytes + new_bytes > cache.cold_cache_max_bytes:
        names = evictions_for(blocks, take_stock(cold), cache.cold_cache_max_bytes)
        if names is None:
            raise OmlxError(f"there is no room in {cold.root}: what is pinned there stays")
        removed = [stored[name] for name in names]
    free_bytes = files.free_bytes() + sum(block.nbytes for block in removed)
    if free_bytes - new_bytes < cache.cold_min_free_disk:
        least = decimal(cache.cold_min_free_disk)
        raise OmlxError(
            f"{decimal(new_bytes)} would leave less than {least} of the disk free "
            "(cache.cold_min_free_disk)"
        )
    for block in removed:
        files.delete(block.name)
    return removed


def _write_blocks(
    cold: ColdDirectory, files: Files, origin: ArchiveOrigin, archive: str, source: BinaryIO
) -> int:
    """Read the archive once more, and return how many blocks were not stored before."""
    added = 0
    key = load_secret(cold.root)
    files.write_description(
        NamespaceDescription(origin.namespace, origin.model, "", origin.block_size, time.time())
    )
    source.seek(0)
    with _archive_errors(archive), open_display() as display:
        reader = read_archive(source, max_bytes=sys.maxsize)
        if reader.manifest.about != origin:
            raise BadArchive("it changed while it was read")
        for number, (record, packed) in enumerate(reader, start=1):
            name = _block_name(record)
            if cold.read(name) is not None:
                files.touch(name, time.time())
            else:
                files.put(name, encode(record, packed, key))
                added += 1
            display.update("importing", number, len(reader.manifest.sizes))
    return added


def _document(
    archive: str, cold: ColdDirectory, manifest: Manifest, added: int, removed: list[StoredFile]
) -> dict[str, Any]:
    return {
        "archive": archive,
        "directory": str(cold.root),
        "model": manifest.about.model or None,
        "namespace": namespace_id(manifest.about.namespace),
        "tokens": manifest.tokens,
        "blocks": manifest.blocks,
        "states": manifest.checkpoints,
        "bytes": sum(manifest.sizes.values()),
        "imported": added,
        "already_there": len(manifest.sizes) - added,
        "removed": len(removed),
    }


def _summary(document: Mapping[str, Any], removed: list[StoredFile]) -> str:
    blocks = counted(document["blocks"] + document["states"], "block")
    text = f"{blocks} with {document['tokens']} tokens of {visible(document['model'] or '?')}, "
    text += f"{decimal(document['bytes'])}: {document['imported']} imported "
    text += f"into {document['directory']}, {document['already_there']} there already."
    if removed:
        size = decimal(sum(block.nbytes for block in removed))
        text += f" To make room, {counted(len(removed), 'block')} of {size} were removed."
    return text
