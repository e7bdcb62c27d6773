"""`omlx-server chat`: a talk with a running server. The talk lives in memory only."""

import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import typer

from omlx_server.cli import output
from omlx_server.cli.address import first_key, local_url
from omlx_server.cli.client import Answer, ChatClient, Message
from omlx_server.cli.options import load_settings
from omlx_server.errors import OmlxError, UsageError

with suppress(ImportError):  # some builds of Python lack it; with it, `input` can edit lines
    import readline  # noqa: F401


def run(*, model: str, url: str, once: Sequence[str], api_key: str, config: Path | None) -> int:
    with _client(url, api_key, config) as client:
        talk = Talk(client, model or _served(client))
        for prompt in once:
            talk.say(prompt)
        if not once:
            _converse(talk)
    return 0


def _client(url: str, api_key: str, config: Path | None) -> ChatClient:
    """Our own config's key goes to our own server only, never to a URL from the command line."""
    if url:
        return ChatClient(url, api_key)
    settings = load_settings(config).settings
    return ChatClient(local_url(settings), api_key or first_key(settings))


def _served(client: ChatClient) -> str:
    models = client.models()
    if not models:
        raise UsageError(f"{client.url} serves no model", hint="omlx-server serve MODEL")
    return models[0]


class Talk:
    """The messages so far. A turn that fails or is stopped leaves no trace in them."""

    def __init__(self, client: ChatClient, model: str) -> None:
        self.model = model
        self._client = client
        self._messages: list[Message] = []

    def say(self, prompt: str) -> None:
        turn = [*self._messages, {"role": "user", "content": prompt}]
        answer = self._client.ask(self.model, turn, show)
        self._messages = [*turn, {"role": "assistant", "content": answer.text}]
        print(f"\n{speed(answer)}")

    def forget(self) -> None:
        self._messages = []


def show(piece: str) -> None:
    print(piece, end="", flush=True)


def speed(answer: Answer) -> str:
    return (
        f"[first token after {answer.first_token_at:.2f} s, "
        f"{answer.tokens_per_second:.1f} tok/s, {answer.completion_tokens} tokens, "
        f"{answer.cached_tokens} of {answer.prompt_tokens} prompt tokens cached]"
    )


def _converse(talk: Talk) -> None:
    at_terminal = sys.stdin.isatty()
    if at_terminal:
        print(f"Talking to {talk.model}. /new forgets the talk, /exit or Ctrl-D ends it.")
    while (line := _read("> " if at_terminal else "")) not in (None, "/exit"):
        if line == "/new":
            talk.forget()
        elif line:
            _turn(talk, line)


def _read(prompt: str) -> str | None:
    try:
        return input(prompt).strip()
    except EOFError:
        if prompt:
            print()
        return None


def _turn(talk: Talk, line: str) -> None:
    try:
        talk.say(line)
    except KeyboardInterrupt:
        typer.echo("\n[stopped]")
    except OmlxError as error:
        output.report(error)
