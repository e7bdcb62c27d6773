"""`omlx-server chat`: a conversation with a running server, or single questions (--once)."""

import math
import os
import select
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from io import TextIOWrapper
from pathlib import Path

import typer

from omlx_server.cli.server_client.http import ServerClient
from omlx_server.cli.shell import output, stdin
from omlx_server.cli.shell.screen import Screen
from omlx_server.cli.talk import slash
from omlx_server.cli.talk.client import (
    ChatClient,
    Stopped,
    TimedAnswer,
    advice_on_length,
    closing,
    served_by,
)
from omlx_server.cli.talk.conversation import Conversation, MakeScreen
from omlx_server.cli.talk.image import read_image
from omlx_server.cli.talk.typed import read_typed
from omlx_server.errors import OmlxError, UsageError

_MOST_STDIN_BYTES = 16 * 1024 * 1024
_PATIENCE = 1.0  # seconds
_CLOSED_HINT = "send it to a file, or to /dev/null"
_DUMB = ("", "dumb", "unknown")
ReadMessage = Callable[[], str | None]
"""Returns the next message; None at the end. Raises KeyboardInterrupt at Ctrl-C."""


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """`once` are questions; without any there is a conversation. `plain`: no Markdown, styles or
    line editing."""

    model: str = ""
    once: Sequence[str] = ()
    system: str = ""
    preset: str = ""
    images: Sequence[Path] = ()
    plain: bool = False
    history: bool = True


def run(server: ServerClient, options: ChatOptions, fields: Mapping[str, float]) -> int:
    if options.once and sys.__stdout__ is None:  # the shell has closed it (`>&-`)
        raise UsageError("stdout is closed, and the answer would be lost", hint=_CLOSED_HINT)
    if isinstance(sys.stdin, TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")
    images = [read_image(path) for path in options.images]
    once = _with_stdin(options.once) if options.once else ()
    is_rich = not options.plain and not once and _is_capable_terminal()
    with ChatClient(server) as client:
        model = options.model or served_by(client)[0]
        make_screen: MakeScreen = Screen
        if is_rich:
            from omlx_server.cli.talk.terminal.screen import RichScreen

            make_screen = RichScreen
        conversation = Conversation(client, model, options.system, fields, make_screen)
        if options.preset:
            conversation.choose_preset(options.preset)
        conversation.pending_images += images
        for prompt in once:
            _close(conversation, conversation.say(prompt))
        if not once:
            if client.is_ours():
                conversation.roll()
            with _input(is_rich, options.history) as read:
                _converse(conversation, read)
    return 0


def fields_of(max_tokens: int | None, temperature: float | None) -> dict[str, float]:
    """Return the given sampling fields. Raises UsageError if the temperature is not finite."""
    if temperature is not None and not math.isfinite(temperature):
        raise UsageError(f"--temperature {temperature}: expected a number", hint="such as 0.7")
    fields = {"max_tokens": max_tokens, "temperature": temperature}
    return {name: value for name, value in fields.items() if value is not None}


def _with_stdin(prompts: Sequence[str]) -> list[str]:
    if sys.stdin is None or stdin.is_terminal():
        return list(prompts)
    with suppress(OSError, ValueError):  # it is no file
        if not select.select([sys.stdin.fileno()], [], [], _PATIENCE)[0]:
            output.say("[waiting for standard input; with </dev/null there is none]")
    data = stdin.read(_MOST_STDIN_BYTES + 1)
    if len(data) > _MOST_STDIN_BYTES:
        most = f"{_MOST_STDIN_BYTES >> 20} MiB"
        raise UsageError(f"standard input is longer than {most}", hint="cut it: tail -n 200")
    text = data.decode(errors="replace").strip("\n")
    first, *more = prompts
    return [f"{first}\n\n{text}" if text else first, *more]


def _is_capable_terminal() -> bool:
    streams = (sys.stdin, sys.stdout, sys.stderr)
    at_terminal = all(stream is not None and stream.isatty() for stream in streams)
    return at_terminal and os.environ.get("TERM", "") not in _DUMB


@contextmanager
def _input(is_rich: bool, keeps_history: bool) -> Iterator[ReadMessage]:
    if not is_rich:
        yield partial(read_typed, "> " if stdin.is_terminal() else "")
        return
    from omlx_server.cli.talk.terminal.prompt import PromptLine, history_file, kept_for_the_prompt

    path = None
    try:
        path = history_file() if keeps_history else None
    except OmlxError as error:
        output.say(f"[{error.message}]")
    with kept_for_the_prompt():
        yield PromptLine(slash.completions(), path).read


def _converse(conversation: Conversation, read: ReadMessage) -> None:
    if stdin.is_terminal():
        model = output.visible(conversation.model)
        _remark(f"Talking to {model}. /exit or Ctrl-D ends it, /help shows more.")
    while (line := _next(read)) is not None and not slash.leaves(line):
        if line.strip():
            with suppress(KeyboardInterrupt):  # a second one, while the first is answered
                _take(conversation, line)


def _next(read: ReadMessage) -> str | None:
    try:
        return read()
    except KeyboardInterrupt:
        if not stdin.is_terminal():
            raise
    _remark("[Ctrl-C again leaves; so does Ctrl-D]")
    with suppress(KeyboardInterrupt):
        return read()
    return None


def _take(conversation: Conversation, line: str) -> None:
    try:
        is_command = slash.is_command(line)
        turn = slash.run(line, conversation) if is_command else partial(conversation.say, line)
    except OmlxError as error:
        output.report(error)
    except KeyboardInterrupt:
        _remark("[stopped]")
    else:
        if turn is not None:
            _ask(conversation, turn)


def _ask(conversation: Conversation, turn: slash.Turn) -> None:
    images = len(conversation.pending_images)
    try:
        _close(conversation, turn())
        return
    except KeyboardInterrupt as stop:
        if isinstance(stop, Stopped) and stop.text:
            _remark("[stopped; what came is kept]")
            return
        _remark("[stopped]")
    except OmlxError as error:
        output.report(error)
    if images and not conversation.pending_images:
        what = "the image" if images == 1 else "the images"
        _remark(f"[the conversation goes on without {what}]")


def _close(conversation: Conversation, answer: TimedAnswer) -> None:
    advice = advice_on_length(answer, conversation.max_tokens)
    lines = closing(answer, advice)
    if answer.dropped_messages > conversation.left_out:
        count = answer.dropped_messages
        lines.insert(0, f"[the context is full: the oldest {count} messages are left out]")
    conversation.left_out = answer.dropped_messages
    for line in lines:
        _remark(line)


def _remark(text: str) -> None:
    if not sys.stderr.isatty():
        output.say(text)
        return
    text = textwrap.fill(text, max(2, shutil.get_terminal_size().columns - 1))
    output.say(text if os.environ.get("NO_COLOR") else typer.style(text, dim=True))
