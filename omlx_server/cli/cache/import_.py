"""`omlx-server cache import`: checks an archive, then writes its blocks into the cold tier."""

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from rich.filesize import decimal

from omlx_server.cli.cache.cache import opened, take_stock
from omlx_server.cli.shell.output import count_blocks, say, show_json, visible
from omlx_server.cli.shell.progress import open_display
from omlx_server.core.blocks.keys import namespace_id
from omlx_server.core.blocks.record import Record
from omlx_server.errors import OmlxError, UsageError, system_errors_as
from omlx_server.settings import CacheSettings
from omlx_server.store.archives.archive import ArchiveOrigin, Manifest, read_archive
from omlx_server.store.archives.tar import BadArchive
from omlx_server.store.block_file import encode
from omlx_server.store.description import NamespaceDescription, NamespaceUse
from omlx_server.store.files import Files, StoredFile
from omlx_server.store.inventory import ColdDirectory, evictions_for
from omlx_server.store.mediums.medium import Name
from omlx_server.store.secret import load_secret

_INSTEAD = "stop it, or let it do that itself: POST /v1/cache/import"


def run(cache: CacheSettings, *, archive: str, force: bool, as_json: bool) -> int:
    with opened(cache, what="added", hint=_INSTEAD) as cold, _open(archive) as source:
        manifest, blocks = _check(archive, source, cache)
        warnings = _warnings(manifest.about, cold.uses(), cache, force=force)
        with cold.writing(min_free_bytes=cache.cold_min_free_disk) as files:
            removed = _make_room(cold, files, cache, blocks)
            added = _keep(cold, files, manifest.about, archive, source)
    document = _document(archive, cold, manifest, added, removed)
    if as_json:
        show_json({**document, "warnings": warnings})
        return 0
    for warning in warnings:
        say(f"warning: {warning}")
    print(_words(document, removed))
    return 0


def _open(archive: str) -> BinaryIO:
    path = Path(archive)
    if path.exists() and not path.is_file():
        raise UsageError(f"{archive} is not a file")
    with system_errors_as(UsageError, f"{archive} can't be read"):
        return path.open("rb")


def _check(
    archive: str, source: BinaryIO, cache: CacheSettings
) -> tuple[Manifest, list[tuple[Record, int]]]:
    blocks, done = [], 0
    with _named(archive), open_display() as display:
        whole = read_archive(source, max_bytes=sys.maxsize)
        manifest = whole.manifest
        total, limit = sum(manifest.sizes.values()), cache.cold_cache_max_bytes
        if total > limit:
            raise UsageError(
                f"{archive} has {decimal(total)}, and the cold tier {decimal(limit)} at most",
                hint=f"--set cache.cold_cache_max_bytes={total}, for servers as well",
            )
        for record, _ in whole:
            blocks.append((record, manifest.sizes[record.key]))
            done += manifest.sizes[record.key]
            display.update("checking the archive", done, total)
    return manifest, blocks


@contextmanager
def _named(archive: str) -> Iterator[None]:
    try:
        with system_errors_as(OmlxError, f"{archive} can't be read"):
            yield
    except BadArchive as error:
        raise OmlxError(f"{archive} can't be used: {error}") from None


def _warnings(
    about: ArchiveOrigin, uses: list[NamespaceUse], cache: CacheSettings, *, force: bool
) -> list[str]:
    warnings = []
    matches = [use for use in uses if use.id == namespace_id(about.namespace) and use.description]
    model = visible(about.model or "?")
    if not matches:
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
    elif matches[0].model_is_there is False:
        warnings.append(f"{model} is gone from {visible(matches[0].path)}")
    reasons = {
        "enabled is off": not cache.enabled,
        "hot_cache_only is on": cache.hot_cache_only,
        "remote is set": bool(cache.remote.reveal()),
    }
    for setting in (setting for setting, counts in reasons.items() if counts):
        warnings.append(f"cache.{setting}: a server with these settings does not look here")
    return warnings


def _difference(about: ArchiveOrigin, uses: list[NamespaceUse]) -> str:
    """Return how that model differs here; empty if unknown. A namespace is
    FINGERPRINT|KV_FORMAT|BLOCK_TOKENS."""
    theirs = about.namespace
    ours = [u.description.namespace for u in uses if u.description and u.is_of(about.model)]
    if not ours:
        return ""
    same = [one for one in ours if one.partition("|")[0] == theirs.partition("|")[0]]
    if not same:
        return "has other weights, another tokenizer or another config"
    same = [one for one in same if one.rpartition("|")[0] == theirs.rpartition("|")[0]]
    if not same:
        return "keeps its KV cache in another format"
    size, their_size = (one.rpartition("|")[2] for one in (same[0], theirs))
    return f"has blocks of {size} tokens, not {their_size} (cache.block_tokens)"


def _name(record: Record) -> Name:
    return Name.of(namespace_id(record.namespace), record.key)


def _make_room(
    cold: ColdDirectory, files: Files, cache: CacheSettings, blocks: list[tuple[Record, int]]
) -> list[StoredFile]:
    stored = {block.name: block for block in cold.blocks()}
    new_bytes = sum(nbytes for record, nbytes in blocks if _name(record) not in stored)
    removed: list[StoredFile] = []
    if sum(block.nbytes for block in stored.values()) + new_bytes > cache.cold_cache_max_bytes:
        names = evictions_for(blocks, take_stock(cold), cache.cold_cache_max_bytes)
        if names is None:
            raise OmlxError(f"there is no room in {cold.root}: what is pinned there stays")
        removed = [stored[name] for name in names]
    free = files.free_bytes() + sum(block.nbytes for block in removed)
    if free - new_bytes < cache.cold_min_free_disk:
        least = decimal(cache.cold_min_free_disk)
        raise OmlxError(
            f"{decimal(new_bytes)} would leave less than {least} of the disk free "
            "(cache.cold_min_free_disk)"
        )
    for block in removed:
        files.delete(block.name)
    return removed


def _keep(
    cold: ColdDirectory, files: Files, about: ArchiveOrigin, archive: str, source: BinaryIO
) -> int:
    added = 0
    key = load_secret(cold.root)
    files.write_description(
        NamespaceDescription(about.namespace, about.model, "", about.block_size, time.time())
    )
    source.seek(0)
    with _named(archive), open_display() as display:
        again = read_archive(source, max_bytes=sys.maxsize)
        if again.manifest.about != about:
            raise BadArchive("it changed while it was read")
        for done, (record, packed) in enumerate(again, start=1):
            name = _name(record)
            if cold.read(name) is not None:
                files.touch(name, time.time())
            else:
                files.put(name, encode(record, packed, key))
                added += 1
            display.update("importing", done, len(again.manifest.sizes))
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


def _words(document: Mapping[str, Any], removed: list[StoredFile]) -> str:
    what = f"{document['tokens']} tokens of {visible(document['model'] or '?')}"
    count, nbytes = document["blocks"] + document["states"], document["bytes"]
    text = f"{count_blocks(count)} with {what}, {decimal(nbytes)}: {document['imported']} imported "
    text += f"into {document['directory']}, {document['already_there']} there already."
    if removed:
        nbytes = sum(block.nbytes for block in removed)
        text += f" To make room, {count_blocks(len(removed))} of {decimal(nbytes)} were removed."
    return text
