"""What the parts of the surface share: options that come again, and how a command is carried out.

Imports typer and nothing heavy. Each command imports what carries it out when it runs.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from typer.core import TyperCommand

from omlx_server.cli.shell import output
from omlx_server.cli.shell.complete import complete_models
from omlx_server.errors import OmlxError

Function = TypeVar("Function", bound=Callable[..., int])

ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="The config file to read, and no other."),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Set any key; may be repeated."),
]
NameArgument = Annotated[
    str,
    typer.Argument(
        metavar="NAME", autocompletion=complete_models, help="As `omlx-server list` says it."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="The same as JSON.")]
UrlOption = Annotated[
    str, typer.Option(metavar="URL", help="The server [default: where `serve` listens].")
]
KeyOption = Annotated[
    str, typer.Option(envvar="OMLX_API_KEY", metavar="KEY", help="Sent as the Bearer token.")
]


class Command(TyperCommand):
    """A command whose function returns its exit code. An error becomes one line, or JSON where the
    function has `as_json`, and the exit code that belongs to it."""

    def invoke(self, ctx: Any) -> None:
        as_json = bool(ctx.params.get("as_json"))
        try:
            code = super().invoke(ctx)
        except OmlxError as error:
            code = output.report(error, as_json=as_json)
        except BrokenPipeError:  # whoever read the output is gone: typer ends us
            raise
        except OSError as error:
            code = output.report(_of_the_system(error), as_json=as_json)
        raise typer.Exit(code)


class Commands(typer.Typer):
    """Commands that are a `Command` each."""

    def command(self, name: str | None = None, **settings: Any) -> Callable[[Function], Function]:
        return super().command(name, cls=Command, **settings)


def _of_the_system(error: OSError) -> OmlxError:
    """A file that can't be had, a disk that is full: no bug, and it says enough."""
    reason = error.strerror or str(error)
    return OmlxError(f"{error.filename}: {reason}" if error.filename else reason)
