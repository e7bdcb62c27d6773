"""`omlx-server cache export`: writes a prompt's stored blocks to an archive."""

import sys
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.filesize import decimal

from omlx_server.cli.cache.cache import of_model, opened
from omlx_server.cli.cache.prompt_file import tokens_of_conversation, tokens_of_text
from omlx_server.cli.shell.output import STDOUT, count_blocks, show_json, visible
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
    with opened(cache) as cold, open_display() as display:
        use, about = _chosen(cold, model)
        if prompt is not None:
            prompts = tokens_of_text(Path(about.path), prompt)
        else:
            prompts = tokens_of_conversation(Path(about.path), conversation or "")
        sizes = {file.name: file.nbytes for file in cold.blocks()}
        candidates = (_find(cold, about, sizes, display, tokens) for tokens in prompts)
        prompt_blocks = max(candidates, key=lambda blocks: blocks.prefix.tokens)
        if not prompt_blocks.members:
            raise OmlxError(
                f"nothing of this is stored for {visible(use.model)}: what a running server uses "
                "is in its memory (POST /v1/cache/export), and what came with a cache_salt is kept "
                "apart"
            )
        whose = ArchiveOrigin(about.namespace, use.model, about.block_size, int(time.time()))
        is_pipe, path = output == STDOUT, Path(output)
        destination = nullcontext(sys.stdout.buffer) if is_pipe else replacing(path, FILE_MODE)
        with system_errors_as(OmlxError, f"{output} can't be written"), destination as out:
            nbytes = write_archive(out, whose, prompt_blocks.members)
            out.flush()
    _report(output, use, prompt_blocks, nbytes, as_json=as_json)
    return 0


def _chosen(cold: ColdDirectory, model: str | None) -> tuple[NamespaceUse, NamespaceDescription]:
    uses = [use for use in cold.uses() if use.blocks]
    if not uses:
        raise OmlxError(f"nothing is stored in {cold.root}", hint=_IN_MEMORY)
    chosen = uses if model is None else of_model(uses, model)
    if len(chosen) > 1:
        listed = ", ".join(f"{use.id} ({visible(use.model or '?')})" for use in chosen)
        raise UsageError(
            f"{len(chosen)} models or formats are there", hint=f"--model with {listed}"
        )
    (use,) = chosen
    about = use.description
    if about is None or not about.path:
        raise OmlxError(
            f"the model of {use.id} has not been served from here, so its tokenizer is not known"
        )
    if about.model_is_there is False:
        raise OmlxError(
            f"{visible(use.model)} is gone from {visible(about.path)}, and with it its tokenizer"
        )
    if not cold.has_secret():
        raise OmlxError(
            f"the secret in {cold.root} is missing or damaged: nothing there can be used"
        )
    return use, about


@dataclass(frozen=True, slots=True)
class _PromptBlocks:
    prompt_tokens: int
    prefix: StoredPrefix
    members: list[ArchiveMember]


def _find(
    cold: ColdDirectory,
    about: NamespaceDescription,
    sizes: Mapping[Name, int],
    display: Display,
    tokens: tuple[int, ...],
) -> _PromptBlocks:
    namespace, total = namespace_id(about.namespace), len(tokens)
    usable: dict[BlockKey, ArchiveMember] = {}

    def load(name: Name) -> PackedArrays:
        block = cold.read(name)
        if block is None:
            raise OmlxError("a block went away meanwhile: try again")
        record, packed = block
        display.update("writing", record.stop, total)
        return packed

    def is_usable(key: BlockKey) -> bool:
        name = Name.of(namespace, key)
        block = cold.read(name) if name in sizes else None
        if block is None:
            return False
        record, _ = block
        usable[key] = ArchiveMember(record, sizes[name], partial(load, name))
        display.update("checking blocks", record.stop, total)
        return True

    start = root_key(about.namespace, b"")
    prefix = find_stored_prefix(start, tokens, about.block_size, is_usable)
    return _PromptBlocks(total, prefix, [usable[key] for key in prefix.keys])


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
    what = f"{count_blocks(len(prefix.blocks))}{' and a state' if prefix.checkpoint else ''}"
    print(
        f"{prefix.tokens} of {prompt_blocks.prompt_tokens} prompt tokens of {visible(use.model)}, "
        f"{what}, {decimal(nbytes)}, are in {'the archive' if output == STDOUT else output}.",
        file=stream,
    )
