"""`omlx-server cache export`: writes a prompt's stored blocks to an archive."""

import sys
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.filesize import decimal

from omlx_server.cli.cache.cache import namespaces_of_model, open_cold_tier
from omlx_server.cli.cache.prompt_file import tokens_of_conversation, tokens_of_text
from omlx_server.cli.shell.output import STDOUT, counted, show_json, visible
from omlx_server.cli.shell.progress import Display, open_display
from omlx_server.core.blocks.keys import BlockKey, namespace_id, root_key
from omlx_server.core.blocks.record import PackedArrays
from omlx_server.errors import OmlxError, UsageError, system_errors_as
from omlx_server.settings import CacheSettings
from omlx_server.settings.whole_file import replacing
from omlx_server.store.archives.archive import ArchiveMember, ArchiveOrigin, write_archive
from omlx_server.store.description import NamespaceDescription, NamespaceUse
from omlx_server.store.inventory import ColdDirectory, StoredPrefix, find_stored_prefix
from omlx_server.store.mediums.medium import Name
from omlx_server.store.mediums.operations import FILE_MODE

_IN_MEMORY = "what a running server has computed is in its memory: POST /v1/cache/export"


def run(
    cache: CacheSettings,
    *,
    prompt: str | None,
    conversation: str | None,
    output: str,
    model: str | None,
    as_json: bool,
) -> int:
    if (prompt is None) == (conversation is None):
        raise UsageError(
            "what is to be exported?", hint="give --prompt FILE or --conversation FILE"
        )
    _check_output(output)
    with open_cold_tier(cache) as cold, open_display() as display:
        use, description = _choose_namespace(cold, model)
        if prompt is not None:
            prompts = tokens_of_text(Path(description.path), prompt)
        else:
            prompts = tokens_of_conversation(Path(description.path), conversation or "")
        file_bytes = {file.name: file.nbytes for file in cold.blocks()}
        candidates = [_find_blocks(cold, description, file_bytes, display, ids) for ids in prompts]
        prompt_blocks = max(candidates, key=lambda candidate: candidate.prefix.tokens)
        if not prompt_blocks.members:
            raise OmlxError(
                f"nothing of this is stored for {visible(use.model)}: what a running server uses "
                "is in its memory (POST /v1/cache/export), and what came with a cache_salt is kept "
                "apart"
            )
        now = int(time.time())
        origin = ArchiveOrigin(description.namespace, use.model, description.block_size, now)
        is_pipe, path = output == STDOUT, Path(output)
        destination = nullcontext(sys.stdout.buffer) if is_pipe else replacing(path, FILE_MODE)
        with system_errors_as(OmlxError, f"{output} can't be written"), destination as out:
            nbytes = write_archive(out, origin, prompt_blocks.members)
            out.flush()
    _report(output, use, prompt_blocks, nbytes, as_json=as_json)
    return 0


def _choose_namespace(
    cold: ColdDirectory, model: str | None
) -> tuple[NamespaceUse, NamespaceDescription]:
    uses = [use for use in cold.uses() if use.blocks]
    if not uses:
        raise OmlxError(f"nothing is stored in {cold.root}", hint=_IN_MEMORY)
    chosen = uses if model is None else namespaces_of_model(uses, model)
    if len(chosen) > 1:
        listed = ", ".join(f"{use.id} ({visible(use.model or '?')})" for use in chosen)
        raise UsageError(
            f"{len(chosen)} models or formats are there", hint=f"--model with {listed}"
        )
    (use,) = chosen
    description = use.description
    if description is None or not description.path:
        raise OmlxError(
            f"the model of {use.id} has not been served from here, so its tokenizer is not known"
        )
    if description.model_is_there is False:
        raise OmlxError(
            f"{visible(use.model)} is gone from {visible(description.path)}, and with it its "
            "tokenizer"
        )
    if not cold.has_secret():
        raise OmlxError(
            f"the secret in {cold.root} is missing or damaged: nothing there can be used"
        )
    return use, description


@dataclass(frozen=True, slots=True)
class _PromptBlocks:
    """The stored blocks at the beginning of one prompt."""

    prompt_tokens: int
    prefix: StoredPrefix
    members: list[ArchiveMember]


def _find_blocks(
    cold: ColdDirectory,
    description: NamespaceDescription,
    file_bytes: Mapping[Name, int],
    display: Display,
    tokens: tuple[int, ...],
) -> _PromptBlocks:
    namespace, all_tokens = namespace_id(description.namespace), len(tokens)
    usable: dict[BlockKey, ArchiveMember] = {}

    def load(name: Name) -> PackedArrays:
        block = cold.read(name)
        if block is None:
            raise OmlxError("a block went away meanwhile: try again")
        record, packed = block
        display.update("writing", record.stop, all_tokens)
        return packed

    def is_usable(key: BlockKey) -> bool:  # it also remembers the member
        name = Name.of(namespace, key)
        block = cold.read(name) if name in file_bytes else None
        if block is None:
            return False
        record, _ = block
        usable[key] = ArchiveMember(record, file_bytes[name], partial(load, name))
        display.update("checking blocks", record.stop, all_tokens)
        return True

    start = root_key(description.namespace, b"")
    prefix = find_stored_prefix(start, tokens, description.block_size, is_usable)
    return _PromptBlocks(all_tokens, prefix, [usable[key] for key in prefix.keys])


def _check_output(output: str) -> None:
    if output == STDOUT:
        if sys.stdout.isatty():
            raise UsageError("an archive is nothing for a terminal", hint="-o FILE, or a pipe")
        return
    path = Path(output)
    if not path.parent.is_dir():
        raise UsageError(f"{path.parent} is not a directory")
    if path.exists() and not path.is_file():
        raise UsageError(f"{path} is there, and is not a file")


def _report(
    output: str, use: NamespaceUse, prompt_blocks: _PromptBlocks, nbytes: int, *, as_json: bool
) -> None:
    stream = sys.stderr if output == STDOUT else sys.stdout
    prefix = prompt_blocks.prefix
    if as_json:
        document = {
            "archive": output,
            "model": use.model or None,
            "namespace": use.id,
            "prompt_tokens": prompt_blocks.prompt_tokens,
            "tokens": prefix.tokens,
            "blocks": len(prefix.blocks),
            "states": len(prefix.keys) - len(prefix.blocks),
            "bytes": nbytes,
        }
        show_json(document, stream)
        return
    state = " and a state" if prefix.checkpoint else ""
    place = "the archive" if output == STDOUT else output
    print(
        f"{prefix.tokens} of {prompt_blocks.prompt_tokens} prompt tokens of {visible(use.model)}, "
        f"{counted(len(prefix.blocks), 'block')}{state}, {decimal(nbytes)}, are in {place}.",
        file=stream,
    )
