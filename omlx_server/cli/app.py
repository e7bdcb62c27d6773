"""The whole surface of `omlx-server`: every command, option and word of help. Does nothing itself.

Groups of commands have a file each (`surface_config`, `surface_cache`). Imports typer and nothing
heavy: `run` loads `omlx_server.cli.<module>` when its command runs.
"""

import sys
from typing import Annotated

import typer

from omlx_server import __version__
from omlx_server.cli import output
from omlx_server.cli.surface import ConfigOption, KeyOption, SetOption, UrlOption, run
from omlx_server.cli.surface_cache import cache
from omlx_server.cli.surface_config import config
from omlx_server.cli.surface_service import service

app = typer.Typer(
    name="omlx-server",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Start here: `omlx-server serve`, then `omlx-server chat` in another terminal. "
    "Each command explains itself: `omlx-server serve --help`.",
)
app.add_typer(config, name="config")
app.add_typer(cache, name="cache")
app.add_typer(service, name="service")

EmbeddingOption = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Also serve embeddings, for example of all-MiniLM-L6-v2."),
]
RerankerOption = Annotated[
    str | None, typer.Option(metavar="NAME", help="Also rank documents with this model.")
]
KvSchemeOption = Annotated[
    str | None,
    typer.Option(
        metavar="SCHEME",
        help="Keep keys and values in few bits: affine, rotated or turboquant [default: none].",
    ),
]
KvBitsOption = Annotated[
    str | None, typer.Option(metavar="BITS", help="How few, 2 to 8 [default: 4].")
]
KvGroupOption = Annotated[
    str | None,
    typer.Option(metavar="N", help="Numbers that share a scale: 32, 64 or 128 [default: 64]."),
]
DegradedOption = Annotated[
    bool,
    typer.Option(
        "--degraded-on-error",
        help="While the config is wrong, answer 503 with the reason; for services.",
    ),
]


def main() -> None:
    sys.excepthook = output.excepthook
    typer.main.get_command(app)(prog_name="omlx-server")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"omlx-server {__version__}")
        raise typer.Exit


@app.callback()
def omlx_server(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print it."),
    ] = False,
) -> None:
    """An OpenAI-compatible LLM server on MLX, for your own machine.

    \b
    Examples:
      omlx-server serve                     serve the starter model on port 8000
      omlx-server chat                      talk to it
      omlx-server chat --once "Hi there"    ask one thing
      omlx-server config show --origin      which settings are in force, and why
      omlx-server cache stats               what is kept on disk, for which model
      omlx-server status                    what the server is doing
      omlx-server doctor                    what is wrong, and how to repair it
      omlx-server launch claude             an agent that talks to it

    OMLX_DEBUG=1 shows tracebacks. NO_COLOR=1 turns colours off.
    """


@app.command()
def serve(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            show_default=False,
            help="A local directory, a catalogue name (starter) or a Hugging Face id. "
            "Without it: models.default of the config, else starter.",
        ),
    ] = "",
    host: Annotated[
        str | None,
        typer.Option(metavar="HOST", help="Where to listen [default: 127.0.0.1]."),
    ] = None,
    port: Annotated[
        str | None,
        typer.Option(metavar="PORT", help="0 takes any free port [default: 8000]."),
    ] = None,
    embedding_model: EmbeddingOption = None,
    reranker: RerankerOption = None,
    kv_scheme: KvSchemeOption = None,
    kv_bits: KvBitsOption = None,
    kv_group_size: KvGroupOption = None,
    config_file: ConfigOption = None,
    sets: SetOption = None,
    degraded_on_error: DegradedOption = False,
) -> None:
    """Serve a model over the OpenAI API until Ctrl-C.

    \b
    Examples:
      omlx-server serve
      omlx-server serve mlx-community/Qwen3-0.6B-4bit --port 9000
      omlx-server serve ./my-model --set scheduler.max_batch_size=16
      omlx-server serve ./my-model --kv-scheme turboquant --kv-bits 3.5
      omlx-server serve --embedding-model all-MiniLM-L6-v2
      OMLX_AUTH__API_KEYS=secret omlx-server serve --host 0.0.0.0

    \b
    Any OpenAI client then connects to http://127.0.0.1:8000/v1
    A flag wins over the environment (OMLX_SERVER__PORT), that over the config file.
    Ctrl-C or SIGTERM lets running answers finish; a second one ends at once.
    """
    flags = {
        "server.host": host,
        "server.port": port,
        "models.embedding": embedding_model,
        "models.reranker": reranker,
        "kv_cache.scheme": kv_scheme,
        "kv_cache.bits": kv_bits,
        "kv_cache.group_size": kv_group_size,
    }
    run(
        "serve",
        model=model,
        flags=flags,
        config=config_file,
        sets=sets or [],
        degraded_on_error=degraded_on_error,
    )


@app.command()
def chat(
    model: Annotated[
        str,
        typer.Argument(metavar="MODEL", show_default=False, help="Default: the served one."),
    ] = "",
    url: UrlOption = "",
    once: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PROMPT", help="Ask this and end; repeat it for several turns of one talk."
        ),
    ] = None,
    api_key: KeyOption = "",
    config_file: ConfigOption = None,
) -> None:
    """Talk to a running server, here in the terminal.

    \b
    Examples:
      omlx-server chat
      omlx-server chat --once "What is the capital of France?"
      omlx-server chat --url http://gpu-box:8000 --api-key secret

    \b
    While it answers, Ctrl-C stops the answer. /new forgets the talk, /exit or Ctrl-D ends.
    """
    run("chat", model=model, url=url, once=once or [], api_key=api_key, config=config_file)


@app.command()
def status(
    as_json: Annotated[bool, typer.Option("--json", help="The same as JSON.")] = False,
    url: UrlOption = "",
    api_key: KeyOption = "",
    config_file: ConfigOption = None,
    sets: SetOption = None,
) -> None:
    """Say what the server is doing: models, load, memory, cache.

    Exit code 1 when nothing answers, or when it is not ready.

    \b
    Examples:
      omlx-server status
      omlx-server status --json --url http://gpu-box:8000
    """
    run("status", as_json=as_json, url=url, api_key=api_key, config=config_file, sets=sets or [])


@app.command(context_settings={"ignore_unknown_options": True})
def launch(
    client: Annotated[
        str, typer.Argument(metavar="CLIENT", help="claude, codex, opencode or aider.")
    ],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- ARGUMENT]...", show_default=False, help="For the client."),
    ] = None,
    show: Annotated[
        bool, typer.Option("--print", help="Print the command instead of running it.")
    ] = False,
    model: Annotated[
        str, typer.Option(metavar="NAME", help="The model to ask [default: the served one].")
    ] = "",
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
    run(
        "launch",
        client=client,
        arguments=arguments or [],
        show=show,
        model=model,
        url=url,
        config=config_file,
    )


@app.command()
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="The same as JSON.")] = False,
    config_file: ConfigOption = None,
    sets: SetOption = None,
) -> None:
    """Look at this machine and at the settings, and say what to repair and how.

    Exit code 1 when something fails. Changes nothing and downloads nothing.

    \b
    Examples:
      omlx-server doctor
      omlx-server doctor --json --config ./omlx.toml
    """
    run("doctor", as_json=as_json, config=config_file, sets=sets or [])


@app.command()
def version() -> None:
    """Print the versions of omlx-server, Python, mlx and mlx-lm."""
    run("version")


@app.command(hidden=True)
def quickstart(
    once: Annotated[bool, typer.Option("--once", help="End after the two answers.")] = False,
) -> None:
    """Start the starter model, ask it twice over HTTP and show the speed (scripts/quickstart)."""
    run("quickstart", once=once)
