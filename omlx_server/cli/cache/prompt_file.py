"""A prompt in a file, as the token ids that a server makes of it.

Imports the tokenizer only when it is wanted, because that takes a second.
"""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omlx_server.cli.shell import stdin
from omlx_server.errors import UsageError
from omlx_server.text.reasoning.effort import template_kwargs
from omlx_server.text.reasoning.style import style_of
from omlx_server.text.templates.system_turns import SystemTurns
from omlx_server.text.tools.fallback import told

STDIN = "-"

_MAX_CHARS = 1 << 28
_BILLING = "x-anthropic-billing-header"  # as in api/chat/prompt.py
_FIELDS = ("name", "tool_calls", "tool_call_id", "reasoning_content", "reasoning")
_ROLES = ("system", "developer", "user", "assistant", "tool")
_EXAMPLE = 'expected a list of messages, as in [{"role": "user", "content": "Hi"}]'


def tokens_of_text(model: Path, name: str) -> list[tuple[int, ...]]:
    """Of a text as it is, to its last newline. More than one answer where a tokenizer has a token
    for the beginning: the text may have come with or without it."""
    _spare_advice()
    from omlx_server.text.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(model)
    text = _read(name)
    tokens = tuple(tokenizer.encode(text))
    name_of_first = tokenizer.template_variables.get("bos_token")
    first = tokenizer.token_id(name_of_first) if name_of_first else None
    return [tokens] if first is None or tokens[:1] == (first,) else [tokens, (first, *tokens)]


def tokens_of_conversation(model: Path, name: str) -> list[tuple[int, ...]]:
    """Of messages as the next turn of their conversation sends them, or of the body of a chat
    completion."""
    body = _parse(name)
    messages = _messages(body["messages"], name)
    _spare_advice()
    from omlx_server.text.templates.template import ChatTemplate
    from omlx_server.text.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(model)
    template = ChatTemplate(tokenizer, max_chars=_MAX_CHARS)
    tools = body.get("tools") or []
    shows_tools = "tools" in template.variables
    systems = SystemTurns.of(template.render)
    source = "\n".join(tokenizer.chat_templates.values())
    kwargs = template_kwargs(
        body.get("chat_template_kwargs") or {},
        template.variables,
        style_of(source, tokenizer.vocabulary),
        effort=body.get("reasoning_effort"),
        budget=body.get("thinking_budget"),
    )
    tokens = template.encode(
        told(messages, tools, shows_tools=shows_tools, systems=systems),
        tools=tools if shows_tools else None,
        add_generation_prompt=messages[-1]["role"] != "assistant",
        kwargs=kwargs,
    )
    return [tuple(tokens)]


def _spare_advice() -> None:
    """Nobody asked for PyTorch: to be called before transformers is imported."""
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")


def _read(name: str) -> str:
    try:
        data = stdin.read() if name == STDIN else Path(name).read_bytes()
        return data.decode()
    except OSError as error:
        raise UsageError(f"{name} can't be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{name} is not UTF-8 text") from None


def _parse(name: str) -> Mapping[str, Any]:
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


def _messages(given: Sequence[Any], name: str) -> list[dict[str, Any]]:
    """As the API hands them to the template: see `template_messages` in api/chat/prompt.py."""
    messages = []
    for index, message in enumerate(given):
        if not isinstance(message, dict) or message.get("role") not in _ROLES:
            raise UsageError(f"{name}: message {index} has no role", hint=_EXAMPLE)
        messages.append(_message(message, f"{name}: message {index}"))
    return [m for m in messages if m["role"] != "system" or m["content"]] or messages


def _message(given: Mapping[str, Any], where: str) -> dict[str, Any]:
    role = "system" if given["role"] == "developer" else given["role"]
    texts = _texts(given, where)
    if role == "system":
        texts = [text for text in texts if not text.startswith(_BILLING)]
    fields = {key: given[key] for key in _FIELDS if given.get(key) is not None}
    return {"role": role, "content": "".join(texts), **fields}


def _texts(given: Mapping[str, Any], where: str) -> list[str]:
    content = given.get("content")
    if content is None and given["role"] == "assistant" and given.get("tool_calls"):
        return []
    parts = content if isinstance(content, list) else [content]
    texts = [part.get("text") if isinstance(part, dict) else part for part in parts]
    known = [text for text in texts if isinstance(text, str)]
    if len(known) < len(parts):
        raise UsageError(f"{where} holds more than text, or nothing", hint=_EXAMPLE)
    return known
