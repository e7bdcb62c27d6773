"""`omlx-server cache export`: writes a prompt's stored blocks to an archive."""

import json
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.filesize import decimal

from omlx_server.cli.cache.cache import namespaces_of_model, open_cold_tier
from omlx_server.cli.shell import stdin
from omlx_server.cli.shell.output import STDOUT, counted, show_json, visible
from omlx_server.cli.shell.progress import Display, open_display
from omlx_server.core.blocks.keys import BlockKey, namespace_id, root_key
from omlx_server.core.blocks.record import PackedArrays
from omlx_server.errors import OmlxError, UsageError, system_errors_as
from omlx_server.settings import CacheSettings
from omlx_server.settings.whole_file import replacing
from omlx_server.store.archives.archive import ArchiveMember, ArchiveOrigin, write_archive
from omlx_server.store.files import NamespaceDescription, NamespaceUse
from omlx_server.store.inventory import ColdDirectory, StoredPrefix, find_stored_prefix
from omlx_server.store.mediums.disk import FILE_MODE
from omlx_server.store.mediums.medium import Name
from omlx_server.text.reasoning.style import template_kwargs
from omlx_server.text.templates.messages import neutral_message, without_empty_systems

_MAX_CHARS = 1 << 28
_ROLES = ("system", "developer", "user", "assistant", "tool")
_EXAMPLE = 'expected a list of messages, as in [{"role": "user", "content": "Hi"}]'
_IN_MEMORY = "what a running server has computed is in its memory: POST /v1/cache/export"


def tokens_of_text(model: Path, name: str) -> list[tuple[int, ...]]:
    """Return the token ids of the text file `name`. If the tokenizer has a bos token but did not
    put it first, a second list has it. Raises UsageError."""
    from omlx_server.text.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(model)
    tokens = tuple(tokenizer.encode(_read(name)))
    bos_token = tokenizer.template_variables.get("bos_token")
    bos_id = tokenizer.token_id(bos_token) if bos_token else None
    if bos_id is None or tokens[:1] == (bos_id,):
        return [tokens]
    return [tokens, (bos_id, *tokens)]


def tokens_of_conversation(model: Path, name: str) -> list[tuple[int, ...]]:
    """Return the token ids of a JSON list of messages or a chat completion's body. Unless the
    last message is the assistant's, they end where the answer begins. Raises UsageError."""
    body = _read_body(name)
    messages = _neutral_messages(body["messages"], name)
    from omlx_server.text.dialect import PromptRenderer, dialect_of
    from omlx_server.text.templates.template import ChatTemplate
    from omlx_server.text.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(model)
    template = ChatTemplate(tokenizer, max_chars=_MAX_CHARS)
    dialect = dialect_of(tokenizer, template.render)
    kwargs = template_kwargs(
        body.get("chat_template_kwargs") or {},
        template.variables,
        dialect.style,
        effort=body.get("reasoning_effort"),
        budget=body.get("thinking_budget"),
    )
    renderer = PromptRenderer(template, dialect, body.get("tools") or [], kwargs)
    opens_answer = messages[-1]["role"] != "assistant"
    return [tuple(renderer.tokenize(renderer.fitted(messages), opens=opens_answer))]


def _read(name: str) -> str:
    try:
        data = stdin.read() if name == stdin.STDIN else Path(name).read_bytes()
        return data.decode()
    except OSError as error:
        raise UsageError(f"{name} can't be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{name} is not UTF-8 text") from None


def _read_body(name: str) -> Mapping[str, Any]:
    try:
        value = json.loads(_read(name))
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise UsageError(f"{name}, {where}: no JSON: {error.msg}", hint=_EXAMPLE) from None
    except (RecursionError, ValueError):
        raise UsageError(f"{name}: no JSON that makes sense", hint=_EXAMPLE) from None
    body = value if isinstance(value, dict) else {"messages": value}
    if not isinstance(body.get("messages"), list) or not body["messages"]:
        raise UsageError(f"{name} holds no messages", hint=_EXAMPLE)
    return body


def _neutral_messages(items: Sequence[Any], name: str) -> list[dict[str, Any]]:
    messages = []
    for index, message in enumerate(items):
        if not isinstance(message, dict) or message.get("role") not in _ROLES:
            raise UsageError(f"{name}: message {index} has no role", hint=_EXAMPLE)
        texts = _texts_of(message, f"{name}: message {index}")
        messages.append(neutral_message(message["role"], texts, message))
    return without_empty_systems(messages)


def _texts_of(message: Mapping[str, Any], where: str) -> list[str]:
    content = message.get("content")
    if content is None and message["role"] == "assistant" and message.get("tool_calls"):
        return []
    parts = content if isinstance(content, list) else [content]
    texts = [part.get("text") if isinstance(part, dict) else part for part in parts]
    strings = [text for text in texts if isinstance(text, str)]
    if len(strings) < len(parts):
        raise UsageError(f"{where} holds more than text, or nothing", hint=_EXAMPLE)
    return strings


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
