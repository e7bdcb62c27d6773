"""The options and help texts of `chat` and `launch`."""

from pathlib import Path
from typing import Annotated

import typer

from omlx_server.cli.shell.command import (
    ConfigOption,
    KeyOption,
    UrlOption,
    flag,
    model_argument,
    model_option,
    option,
)
from omlx_server.cli.shell.complete import complete_presets


def complete_clients() -> list[str]:
    from omlx_server.cli.launch.clients import CLIENTS

    return list(CLIENTS)


ChatModel = Annotated[str, model_argument("Default: the served one.")]
PromptsOption = Annotated[
    list[str] | None,
    option(
        "PROMPT",
        "Ask this and end; repeat it for several turns. What a pipe gives is appended to the "
        "question.",
    ),
]
ImagesOption = Annotated[
    list[Path] | None, option("FILE", "Show this image with the first message; may be repeated.")
]
SystemOption = Annotated[
    str, option("TEXT", "What the model is told before the talk.", show_default=False)
]
PresetOption = Annotated[
    str,
    option(
        "NAME",
        "One of the model's presets: models.overrides.MODEL.presets.NAME of the server.",
        complete=complete_presets,
        show_default=False,
    ),
]
TokensOption = Annotated[
    int | None, option("N", "The most tokens of an answer [default: the server's].", min=1)
]
TemperatureOption = Annotated[
    float | None, option("X", "0 always takes the likeliest [default: the server's].", min=0)
]
PlainOption = Annotated[bool, flag("No Markdown, colours or line editing.", "--plain")]
NoHistoryOption = Annotated[
    bool, flag("Do not keep what you type for the next time.", "--no-history")
]
ClientArgument = Annotated[
    str,
    typer.Argument(
        metavar="CLIENT", autocompletion=complete_clients, help="claude, codex, opencode or aider."
    ),
]
ForClient = Annotated[
    list[str] | None,
    typer.Argument(metavar="[-- ARGUMENT]...", show_default=False, help="For the client."),
]
PrintOption = Annotated[bool, flag("Print the command instead of running it.", "--print")]
LaunchModel = Annotated[str, model_option("The model to ask [default: the served one].")]


def chat(
    model: ChatModel = "",
    url: UrlOption = "",
    once: PromptsOption = None,
    image: ImagesOption = None,
    system: SystemOption = "",
    preset: PresetOption = "",
    max_tokens: TokensOption = None,
    temperature: TemperatureOption = None,
    plain: PlainOption = False,
    no_history: NoHistoryOption = False,
    api_key: KeyOption = "",
    config_file: ConfigOption = None,
) -> int:
    """Talk to a running server, here in the terminal.

    \b
    Examples:
      omlx-server chat
      omlx-server chat --once "What is the capital of France?" --max-tokens 20
      omlx-server chat --once "What is on this photo?" --image photo.jpg
      omlx-server chat --system "Answer in French." --temperature 0
      omlx-server chat --preset coder
      df -h | omlx-server chat --once "Is a disk nearly full?" --max-tokens 100
      OMLX_API_KEY=secret omlx-server chat --url http://gpu-box:8000

    \b
    On a terminal answers are rendered as Markdown, thoughts are dimmed, and lines can be edited. A
    backslash at the end of a line, Alt-Enter or Ctrl-J goes on in the next. Ctrl-C stops an answer,
    Ctrl-D leaves. /help lists the commands, such as /image FILE [TEXT], which shows a picture.

    Answers go to stdout; thoughts, tokens and speed, what commands tell, and errors to stderr.
    """
    from omlx_server.cli.server_client.http import server_of
    from omlx_server.cli.talk.chat import ChatOptions, run, sampling_fields

    fields = sampling_fields(max_tokens, temperature)
    server = server_of(url, api_key, config_file)
    options = ChatOptions(model, once or [], system, preset, image or [], plain, not no_history)
    return run(server, options, fields)


def launch(
    client: ClientArgument,
    arguments: ForClient = None,
    show: PrintOption = False,
    model: LaunchModel = "",
    url: UrlOption = "",
    config_file: ConfigOption = None,
) -> int:
    """Start a coding agent that talks to this server. Its own settings stay as they are.

    \b
    Examples:
      omlx-server launch claude
      omlx-server launch codex --model Qwen3-4B-4bit -- exec "explain this repository"
      omlx-server launch opencode --print

    The agent is told how many tokens the model's context holds; below 32,000 there is a warning. A
    model that can't chat is refused.

    With a key in auth.api_keys, or in OMLX_API_KEY, that is handed over; it is never printed.
    """
    from omlx_server.cli.launch.launch import run

    return run(
        client, arguments=arguments or [], show=show, model=model, url=url, config=config_file
    )
