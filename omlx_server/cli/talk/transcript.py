"""Conversations as files: a JSON list of messages."""

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from omlx_server.cli.shell.output import visible
from omlx_server.cli.talk.client import Message
from omlx_server.errors import UsageError, system_errors_as
from omlx_server.settings.types import expanded
from omlx_server.settings.whole_file import PRIVATE_FILE, replacing

_ROLES = ("system", "user", "assistant")
_MOST_BYTES = 256 * 1024 * 1024
# JSON may hold these control characters, but `cat` would send them to a terminal.
_CONTROLS = re.compile(r"[\x7f-\x9f]")


def save(path: Path, messages: Sequence[Message]) -> bool:
    """Write a private file; return whether it replaces one of `save`. Raises UsageError."""
    path = expanded(path)
    with system_errors_as(UsageError, visible(str(path))):
        replaced = path.exists()
    if replaced:
        _check_is_ours(path)
    text = json.dumps(messages, ensure_ascii=False, indent=2)
    text = _CONTROLS.sub(lambda control: f"\\u{ord(control[0]):04x}", text)
    with system_errors_as(UsageError, visible(str(path))), replacing(path, PRIVATE_FILE) as file:
        # A lone surrogate, which JSON may hold, is no text.
        file.write(text.encode("utf-8", "replace") + b"\n")
    return replaced


def load(path: Path) -> list[Message]:
    """Return each message's `role` and `content` from a JSON file. Raises UsageError."""
    return _messages_in(_read_json(path), visible(str(path)))


def _read_json(path: Path) -> Any:
    name = visible(str(path))
    path = expanded(path)
    with system_errors_as(UsageError, name):
        if path.exists() and not path.is_file():
            raise UsageError(f"{name} is no file")
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise UsageError(f"{name} is larger than {_MOST_BYTES >> 20} MiB")
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{name} is no JSON: {visible(str(error))}") from None


def _messages_in(document: Any, name: str) -> list[Message]:
    if isinstance(document, dict):
        document = document.get("messages")
    if not isinstance(document, list) or not document:
        raise UsageError(f"{name} has no list of messages", hint="/save writes one")
    return [
        _message_of(item, f"{name}, message {number}") for number, item in enumerate(document, 1)
    ]


def _message_of(item: Any, where: str) -> Message:
    if not isinstance(item, dict):
        raise UsageError(f"{where}: it is no object")
    role, content = item.get("role"), item.get("content")
    if role not in _ROLES:
        raise UsageError(f"{where}: its role is none of {', '.join(_ROLES)}")
    is_parts = isinstance(content, list) and all(isinstance(part, dict) for part in content)
    if not is_parts and not isinstance(content, str):
        raise UsageError(f"{where}: its content is neither a text nor a list of parts")
    return {"role": role, "content": content}


def _check_is_ours(path: Path) -> None:
    """Raise UsageError unless `save` wrote the file, so that `load` loses nothing of it."""
    name = visible(str(path))
    with suppress(UsageError):
        document = _read_json(path)
        if document == _messages_in(document, name):
            return
    hint = "name another, or remove it"
    raise UsageError(f"{name} is there, and no conversation that /save wrote", hint=hint)
