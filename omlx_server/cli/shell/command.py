"""Shared options, and how a command runs and ends. Imports nothing heavy."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from typer.core import TyperCommand

from omlx_server.cli.shell import output
from omlx_server.cli.shell.complete import complete_models, complete_settings
from omlx_server.errors import OmlxError

Function = TypeVar("Function", bound=Callable[..., int])


def option(
    metavar: str,
    about: str,
    *names: str,
    complete: Callable[..., Sequence[str]] | None = None,
    **more: Any,
) -> Any:
    """Return an option with a value; without `names` it is named after its parameter."""
    return typer.Option(*names, metavar=metavar, help=about, autocompletion=complete, **more)


def flag(about: str, *names: str) -> Any:
    return typer.Option(*names, help=about)


ConfigOption = Annotated[
    Path | None, option("FILE", "The config file to read, and no other.", "--config")
]
SetOption = Annotated[
    list[str] | None,
    option(
        "SECTION.KEY=VALUE", "Set any key; may be repeated.", "--set", complete=complete_settings
    ),
]


def model_argument(
    about: str, *, metavar: str = "MODEL", complete: Callable[..., Sequence[str]] = complete_models
) -> Any:
    return typer.Argument(metavar=metavar, show_default=False, autocompletion=complete, help=about)


def model_option(about: str) -> Any:
    return option("NAME", about, "--model", complete=complete_models)


NameArgument = Annotated[str, model_argument("As `omlx-server list` says it.", metavar="NAME")]
JsonOption = Annotated[bool, flag("The same as JSON.", "--json")]
UrlOption = Annotated[str, option("URL", "The server [default: where `serve` listens].")]
KeyOption = Annotated[str, option("KEY", "Sent as the Bearer token.", envvar="OMLX_API_KEY")]


class ExitCodeCommand(TyperCommand):
    """A command whose function returns its exit code. It prints an OmlxError or OSError."""

    def invoke(self, ctx: Any) -> None:
        output.escape_unencodable()
        as_json = bool(ctx.params.get("as_json"))
        # With `cache export -o -` stdout is the archive, so errors go to stderr.
        error_stream = sys.stderr if ctx.params.get("output") == output.STDOUT else None
        try:
            code = super().invoke(ctx)
        except OmlxError as error:
            code = output.report_error(error, as_json=as_json, stream=error_stream)
        except BrokenPipeError:  # the reader of a pipe is gone: typer ends the program
            raise
        except OSError as error:
            place = f"{error.filename}: " if error.filename else ""
            in_words = OmlxError(f"{place}{error.strerror or error}")
            code = output.report_error(in_words, as_json=as_json, stream=error_stream)
        raise typer.Exit(code)


class Commands(typer.Typer):
    """A Typer app whose functions return exit codes."""

    def command(self, name: str | None = None, **settings: Any) -> Callable[[Function], Function]:
        return super().command(name, cls=ExitCodeCommand, **settings)
