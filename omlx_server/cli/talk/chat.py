"""`omlx-server chat`: a conversation with a running server. It is kept in memory only."""

import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import typer

from omlx_server.cli.server_client.http import ServerClient
from omlx_server.cli.shell import output, stdin
from omlx_server.cli.shell.screen import Screen
from omlx_server.cli.talk.client import Answer, ChatClient, Message, served_by
from omlx_server.cli.talk.image import Image, content, read_image, split
from omlx_server.errors import OmlxError, UsageError

with suppress(ImportError):  # some builds of Python lack it; with it, `input` can edit lines
    import readline  # noqa: F401


_COMMAND = re.compile(r"/[^\s/]*")  # what has blanks, or a slash more, may be a path
_IMAGE = re.compile(r"/image(?!\S)\s*")
_ENDS = ("/exit", "/quit", "/bye")
_WITHOUT = "[the talk goes on without the images]"
_HELP = """\
/image FILE [TEXT]   shows an image: with TEXT, else with the next message
/new                 forgets the talk
/exit, Ctrl-D        ends it; so do /quit and /bye
/help, /?            shows this
Ctrl-C               stops an answer
All else is said to the model."""


def run(
    server: ServerClient,
    *,
    model: str,
    once: Sequence[str],
    system: str,
    fields: Mapping[str, float],
    images: Sequence[Path] = (),
) -> int:
    read = [read_image(path) for path in images]
    with ChatClient(server) as client:
        talk = Talk(client, model or served_by(client)[0], system, fields)
        for image in read:
            talk.show(image)
        for prompt in once:
            talk.say(prompt)
        if not once:
            _converse(talk)
    return 0


def fields_of(max_tokens: int | None, temperature: float | None) -> dict[str, float]:
    """The sampling fields of the requests: those that are not None; the server chooses the others.
    Raises UsageError if the temperature is not finite."""
    if temperature is not None and not math.isfinite(temperature):
        raise UsageError(f"--temperature {temperature}: expected a number", hint="such as 0.7")
    given = {"max_tokens": max_tokens, "temperature": temperature}
    return {name: value for name, value in given.items() if value is not None}


class Talk:
    """The messages so far, after a system message if `system` is not empty. A turn that fails, is
    stopped or gives no text is not kept, nor are its images. `fields` are sent with every request.
    `waiting` are the images that go with the next message."""

    def __init__(
        self, client: ChatClient, model: str, system: str, fields: Mapping[str, float]
    ) -> None:
        self.model = model
        self._client = client
        self._begin: list[Message] = [{"role": "system", "content": system}] if system else []
        self._fields = fields
        self._messages = self._begin
        self.waiting: list[Image] = []

    def show(self, image: Image) -> None:
        self.waiting.append(image)

    def say(self, prompt: str) -> None:
        images, self.waiting = self.waiting, []
        turn = [*self._messages, {"role": "user", "content": content(prompt, images)}]
        with Screen() as screen:
            answer = self._client.ask(self.model, turn, screen, **self._fields)
        if answer.text:
            self._messages = [*turn, {"role": "assistant", "content": answer.text}]
        advice = _advice(answer, self._fields.get("max_tokens"))
        print("\n".join(closing(answer, advice)))

    def forget(self) -> None:
        self._messages, self.waiting = self._begin, []


def closing(answer: Answer, advice: str = "") -> list[str]:
    """The lines below an answer: why it ended early, if it did, and its speed. `advice` is added if
    the length limit ended it."""
    lines = [speed(answer)]
    if answer.finish_reason == "length":
        where = "" if answer.text else ", before it came to an answer"
        advice = f": {advice}" if advice else ""
        lines.insert(0, f"[cut at {answer.completion_tokens} tokens{where}{advice}]")
    elif answer.finish_reason != "stop":
        lines.insert(0, f"[ended by the server: {answer.finish_reason}]")
    return lines


def _advice(answer: Answer, max_tokens: float | None) -> str:
    """Why an answer was cut, or what helps; the request allowed `max_tokens`, or None."""
    if max_tokens is not None and answer.completion_tokens >= max_tokens:
        return "--max-tokens raises it"
    if max_tokens is not None:
        return "the context is full"
    return "the context is full, or the server's own limit is reached, which --max-tokens overrides"


def speed(answer: Answer) -> str:
    tokens = f"{answer.completion_tokens} tokens"
    if answer.reasoning_tokens:
        tokens += f" ({answer.reasoning_tokens} of thoughts)"
    return (
        f"[first token after {answer.first_token_at:.2f} s, "
        f"{answer.tokens_per_second:.1f} tok/s, {tokens}, "
        f"{answer.cached_tokens} of {answer.prompt_tokens} prompt tokens cached]"
    )


def _converse(talk: Talk) -> None:
    at_terminal = stdin.is_terminal()
    if at_terminal:
        print(f"Talking to {talk.model}. /exit or Ctrl-D ends it, /help shows more.")
    while (line := _read("> " if at_terminal else "")) is not None and line not in _ENDS:
        if given := _IMAGE.match(line):
            _show(talk, line[given.end() :])
        elif _COMMAND.fullmatch(line):
            _command(talk, line)
        elif line:
            _turn(talk, line)


def _show(talk: Talk, rest: str) -> None:
    """The command /image: `rest` is a path, and perhaps a text to say."""
    try:
        path, text = split(rest)
        image = read_image(path)
    except OmlxError as error:
        output.report(error)
        return
    talk.show(image)
    output.show(f"[{image.words}]" if text else f"[{image.words}; it goes with the next message]")
    if text:
        _turn(talk, text)


def _command(talk: Talk, line: str) -> None:
    if line == "/new":
        talk.forget()
    elif line in ("/help", "/?"):
        print(_HELP)
    else:
        output.show_error(f"{line}: no such command", "/help lists them")


def _read(prompt: str) -> str | None:
    try:
        return input(prompt).strip()
    except (EOFError, RuntimeError):  # RuntimeError: stdin is closed
        if prompt:
            print()
        return None


def _turn(talk: Talk, line: str) -> None:
    images = len(talk.waiting)
    try:
        talk.say(line)
    except KeyboardInterrupt:
        typer.echo("[stopped]")
    except OmlxError as error:
        output.report(error)
    else:
        return
    if images:
        typer.echo("[the talk goes on without the image]" if images == 1 else _WITHOUT)
