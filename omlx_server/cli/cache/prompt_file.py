"""Turns a prompt in a file into the token ids that a server makes of it."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omlx_server.cli.shell import stdin
from omlx_server.errors import UsageError
from omlx_server.text.reasoning.effort import template_kwargs
from omlx_server.text.templates.messages import neutral_message, without_empty_systems

_MAX_CHARS = 1 << 28
_ROLES = ("system", "developer", "user", "assistant", "tool")
_EXAMPLE = 'expected a list of messages, as in [{"role": "user", "content": "Hi"}]'


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
    from omlx_server.text.dialect import dialect_of
    from omlx_server.text.prompt import PromptRenderer
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
