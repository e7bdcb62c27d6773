"""Checks a chat template of the user's own before a model is loaded with it."""

import traceback
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import Template, TemplateSyntaxError

from omlx_server.core.crash import Crash, guarded
from omlx_server.errors import ConfigError
from omlx_server.text.templates.sandbox import Sandbox

_WORD = "c0ffee0"
_MAX_CHARS, _SECONDS = 1_000_000, 10.0
# What a tokenizer hands to a template; a trial has no tokenizer.
_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")


def check_template(source: str, path: str) -> None:
    """Raises ConfigError that names `path` and the line, for a template that can't be compiled,
    or fails on a conversation of one message or does not show it."""
    sandbox = Sandbox(max_chars=_MAX_CHARS, seconds=_SECONDS)
    template = guarded(sandbox.from_string, source)
    if isinstance(template, Crash):
        raise _faulty(path, template.error)
    # Some templates take a content only as a list of parts.
    contents = (_WORD, [{"type": "text", "text": _WORD}])
    outcomes = [guarded(_render, sandbox, template, content) for content in contents]
    if any(isinstance(outcome, str) and _WORD in outcome for outcome in outcomes):
        return
    if isinstance(outcomes[0], Crash):
        raise _faulty(path, outcomes[0].error)
    raise ConfigError(f"{path}: the chat template does not show the user's message")


def _render(
    sandbox: Sandbox, template: Template, content: str | Sequence[Mapping[str, str]]
) -> str:
    variables: dict[str, Any] = {
        **dict.fromkeys(_TOKENS, ""),
        "messages": [{"role": "user", "content": content}],
        "tools": None,
        "documents": None,
        "add_generation_prompt": True,
    }
    return sandbox.render(template, variables)


def _faulty(path: str, error: Exception) -> ConfigError:
    line = _line_of(error)
    where = path if line is None else f"{path}, line {line}"
    reason = Crash(error).reason if str(error) else type(error).__name__
    return ConfigError(f"{where}: the chat template is faulty: {reason}")


def _line_of(error: Exception) -> int | None:
    if isinstance(error, TemplateSyntaxError):
        return error.lineno
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == "<template>"]
    return lines[-1] if lines else None
