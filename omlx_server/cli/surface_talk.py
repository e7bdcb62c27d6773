"""The surface of what talks to a running server: `chat` and `launch`."""

from typing import Annotated

import typer

from omlx_server.cli.complete import complete_clients, complete_models
from omlx_server.cli.surface import ConfigOption, KeyOption, UrlOption, run

ChatModel = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        show_default=False,
        autocompletion=complete_models,
        help="Default: the served one.",
    ),
]
PromptsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--once",
        metavar="PROMPT",
        help="Ask this and end; repeat it for several turns of one talk.",
    ),
]
ClientArgument = Annotated[
    str,
    typer.Argument(
        metavar="CLIENT",
        autocompletion=complete_clients,
        help="claude, codex, opencode or aider.",
    ),
]
ForClient = Annotated[
    list[str] | None,
    typer.Argument(metavar="[-- ARGUMENT]...", show_default=False, help="For the client."),
]
PrintOption = Annotated[
    bool, typer.Option("--print", help="Print the command instead of running it.")
]
LaunchModel = Annotated[
    str,
    typer.Option(
        "--model",
        metavar="NAME",
        autocompletion=complete_models,
        help="The model to ask [default: the served one].",
    ),
]


def chat(
    model: ChatModel = "",
    url: UrlOption = "",
    once: PromptsOption = None,
    api_key: KeyOption = "",
    config_file: ConfigOption = None,
) -> None:
    """Talk to a running server, here in the terminal.

    \b
    Examples:
      omlx-server chat
      omlx-server chat --once "What is the capital of France?"
      OMLX_API_KEY=secret omlx-server chat --url http://gpu-box:8000

    \b
    While it answers, Ctrl-C stops the answer. /new forgets the talk, /exit or Ctrl-D ends.
    """
    run("chat", model=model, url=url, once=once or [], api_key=api_key, config=config_file)


def launch(
    client: ClientArgument,
    arguments: ForClient = None,
    show: PrintOption = False,
    model: LaunchModel = "",
    url: UrlOption = "",
    config_file: ConfigOption = None,
) -> None:
    """Start a coding agent that talks to this server. Its own settings stay as they are.

    \b
    Examples:
      omlx-server launch claude
      omlx-server launch codex --model Qwen3-4B-4bit -- exec "explain this repository"
      omlx-server launch opencode --print

    With a key in auth.api_keys, or in OMLX_API_KEY, that is handed over; it is never printed.
    """
    where = {"model": model, "url": url, "config": config_file}
    run("launch", client=client, arguments=arguments or [], show=show, **where)
