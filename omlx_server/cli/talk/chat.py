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
    closing_lines,
    served_models,
)
from omlx_server.cli.talk.conversation import Conversation, MakeScreen
from omlx_server.cli.talk.image import read_image
from omlx_server.cli.talk.typed import read_typed
from omlx_server.errors import OmlxError, UsageError

_MOST_STDIN_BYTES = 16 * 1024 * 1024
_STDIN_PATIENCE_SECONDS = 1.0
_DUMB_TERMINALS = ("", "dumb", "unknown")
ReadMessage = Callable[[], str | None]
"""Returns the next message; None at the end. Raises KeyboardInterrupt at Ctrl-C."""


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """Options of `chat`. `once` are questions. `plain`: no Markdown, styles or line editing."""

    model: str = ""
    once: Sequence[str] = ()
    system: str = ""
    preset: str = ""
    images: Sequence[Path] = ()
    plain: bool = False
    history: bool = True


def run(server: ServerClient, options: ChatOptions, fields: Mapping[str, float]) -> int:
    if options.once and sys.__stdout__ is None:  # the shell has closed it (`>&-`)
        hint = "send it to a file, or to /dev/null"
        raise UsageError("stdout is closed, and the answer would be lost", hint=hint)
    if isinstance(sys.stdin, TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")
    images = [read_image(path) for path in options.images]
    questions = _with_stdin(options.once) if options.once else ()
    is_rich = not options.plain and not questions and _is_capable_terminal()
    with ChatClient(server) as client:
        model = options.model or served_models(client)[0]
        make_screen: MakeScreen = Screen
        if is_rich:
            from omlx_server.cli.talk.terminal.screen import RichScreen

            make_screen = RichScreen
        conversation = Conversation(client, model, options.system, fields, make_screen)
        if options.preset:
            conversation.choose_preset(options.preset)
        conversation.pending_images += images
        for question in questions:
            _print_closing(conversation, conversation.say(question))
        if not questions:
            if client.is_ours():
                conversation.drop_oldest_turns()
            with _message_input(is_rich, options.history) as read:
                _converse(conversation, read)
    return 0


def sampling_fields(max_tokens: int | None, temperature: float | None) -> dict[str, float]:
    """Return the given sampling fields. Raises UsageError if the temperature is not finite."""
    if temperature is not None and not math.isfinite(temperature):
        raise UsageError(f"--temperature {temperature}: expected a number", hint="such as 0.7")
    fields = {"max_tokens": max_tokens, "temperature": temperature}
    return {name: value for name, value in fields.items() if value is not None}


def _with_stdin(prompts: Sequence[str]) -> list[str]:
    """Return the prompts; what a pipe gives is appended to the first."""
    if sys.stdin is None or stdin.is_terminal():
        return list(prompts)
    with suppress(OSError, ValueError):  # stdin has no file descriptor to wait for
        if not select.select([sys.stdin.fileno()], [], [], _STDIN_PATIENCE_SECONDS)[0]:
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
    return at_terminal and os.environ.get("TERM", "") not in _DUMB_TERMINALS


@contextmanager
def _message_input(is_rich: bool, keeps_history: bool) -> Iterator[ReadMessage]:
    if not is_rich:
        yield partial(read_typed, "> " if stdin.is_terminal() else "")
        return
    from omlx_server.cli.talk.terminal.prompt import PromptLine, history_file, typing_ahead

    path = None
    try:
        path = history_file() if keeps_history else None
    except OmlxError as error:
        output.say(f"[{error.message}]")
    with typing_ahead():
        yield PromptLine(slash.completions(), path).read


def _converse(conversation: Conversation, read: ReadMessage) -> None:
    if stdin.is_terminal():
        model = output.visible(conversation.model)
        _print_remark(f"Talking to {model}. /exit or Ctrl-D ends it, /help shows more.")
    while (line := _read_next(read)) is not None and line not in slash.EXITS:
        if line.strip():
            with suppress(KeyboardInterrupt):  # a second one, while the first is answered
                _answer(conversation, line)


def _read_next(read: ReadMessage) -> str | None:
    try:
        return read()
    except KeyboardInterrupt:
        if not stdin.is_terminal():
            raise
    _print_remark("[Ctrl-C again leaves; so does Ctrl-D]")
    with suppress(KeyboardInterrupt):
        return read()
    return None


def _answer(conversation: Conversation, line: str) -> None:
    """Run a command, or send a message; print what goes wrong."""
    turn: slash.Turn | None = partial(conversation.say, line)
    try:
        if slash.is_command(line):
            turn = slash.run(line, conversation)
    except OmlxError as error:
        output.report_error(error)
    except KeyboardInterrupt:
        _print_remark("[stopped]")
    else:
        if turn is not None:
            _take_turn(conversation, turn)


def _take_turn(conversation: Conversation, turn: slash.Turn) -> None:
    image_count = len(conversation.pending_images)
    try:
        _print_closing(conversation, turn())
        return
    except KeyboardInterrupt as stop:
        if isinstance(stop, Stopped) and stop.text:
            _print_remark("[stopped; what came is kept]")
            return
        _print_remark("[stopped]")
    except OmlxError as error:
        output.report_error(error)
    if image_count and not conversation.pending_images:
        what = "the image" if image_count == 1 else "the images"
        _print_remark(f"[the conversation goes on without {what}]")


def _print_closing(conversation: Conversation, answer: TimedAnswer) -> None:
    lines = closing_lines(answer, advice_on_length(answer, conversation.max_tokens))
    count = answer.dropped_messages
    if count > conversation.dropped_messages:
        lines.insert(0, f"[the context is full: the oldest {count} messages are left out]")
    conversation.dropped_messages = count
    for line in lines:
        _print_remark(line)


def _print_remark(text: str) -> None:
    if not sys.stderr.isatty():
        output.say(text)
        return
    text = textwrap.fill(text, max(2, shutil.get_terminal_size().columns - 1))
    output.say(text if os.environ.get("NO_COLOR") else typer.style(text, dim=True))
