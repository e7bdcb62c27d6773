"""Declares all commands of `omlx-server`. It imports typer and nothing heavy."""

import os
from typing import Annotated

import typer

from omlx_server import __version__
from omlx_server.cli.cache.commands import cache
from omlx_server.cli.config.commands import config
from omlx_server.cli.look.commands import bench, doctor, status, version
from omlx_server.cli.models.commands import add_model_commands
from omlx_server.cli.serve.commands import rank, serve, up
from omlx_server.cli.service.commands import service
from omlx_server.cli.shell import ending
from omlx_server.cli.shell.command import Commands
from omlx_server.cli.shell.usage import Root
from omlx_server.cli.talk.commands import chat, launch

app = Commands(
    name="omlx-server",
    cls=Root,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Start here: `omlx-server up`. Each command explains itself: `omlx-server help up`.",
)
for command in (up, serve, rank, chat, status, bench, doctor, version):
    app.command()(command)
app.command(context_settings={"ignore_unknown_options": True})(launch)
add_model_commands(app)
app.add_typer(config, name="config")
app.add_typer(cache, name="cache")
app.add_typer(service, name="service")


def main() -> None:
    ending.install_excepthook()
    # Else transformers advises to install PyTorch.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    with ending.flushing_stdout():
        typer.main.get_command(app)(prog_name="omlx-server")


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"omlx-server {__version__}")
        raise typer.Exit


@app.callback()
def omlx_server(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print it.")
    ] = False,
) -> None:
    """An OpenAI-compatible LLM server on MLX, for your own machine.

    \b
    Examples:
      omlx-server up                        get a model, serve it, say how to connect
      omlx-server chat                      talk to it
      omlx-server chat --once "Hi there"    ask one thing
      omlx-server launch claude             an agent that talks to it
      omlx-server config show --origin      which settings are in force, and why
      omlx-server cache stats               what is kept on disk, for which model
      omlx-server status                    what the server is doing
      omlx-server bench                     how fast it is
      omlx-server doctor                    what is wrong, and how to repair it

    \b
    Exit codes: 0 done, 1 it failed, 2 it was asked for wrongly, 130 interrupted by Ctrl-C.
    OMLX_DEBUG=1 shows tracebacks. NO_COLOR=1 turns colours off.
    """
