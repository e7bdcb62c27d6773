"""The whole surface of `omlx-server`: every command, option and word of help. Does nothing itself.

Imports typer and nothing heavy: `run` loads `omlx_server.cli.<module>` when its command runs.
"""

import sys
from pathlib import Path
from typing import Annotated

import typer

from omlx_server import __version__
from omlx_server.cli import lazy, output
from omlx_server.errors import OmlxError

app = typer.Typer(
    name="omlx-server",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Start here: `omlx-server serve`, then `omlx-server chat` in another terminal. "
    "Each command explains itself: `omlx-server serve --help`.",
)
config = typer.Typer(no_args_is_help=True, help="Show the settings in force and their origin.")
app.add_typer(config, name="config")
cache = typer.Typer(no_args_is_help=True, help="Look after the blocks that are kept on disk.")
app.add_typer(cache, name="cache")

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
ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="The config file to read, and no other."),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Set any key; may be repeated."),
]
DirOption = Annotated[
    Path | None,
    typer.Option("--dir", metavar="PATH", help="The directory [default: cache.cold_dir]."),
]


def main() -> None:
    sys.excepthook = output.excepthook
    typer.main.get_command(app)(prog_name="omlx-server")


def run(module: str, function: str = "run", /, **arguments: object) -> None:
    """Carry out a command; its errors become one line each, and an exit code."""
    try:
        code = getattr(lazy.load(f"cli.{module}"), function)(**arguments)
    except OmlxError as error:
        code = output.report(error)
    raise typer.Exit(code)


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
    run("serve", model=model, flags=flags, config=config_file, sets=sets or [])


@app.command()
def chat(
    model: Annotated[
        str,
        typer.Argument(metavar="MODEL", show_default=False, help="Default: the served one."),
    ] = "",
    url: Annotated[
        str,
        typer.Option(metavar="URL", help="The server [default: where `serve` listens]."),
    ] = "",
    once: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PROMPT", help="Ask this and end; repeat it for several turns of one talk."
        ),
    ] = None,
    api_key: Annotated[
        str,
        typer.Option(envvar="OMLX_API_KEY", metavar="KEY", help="Sent as the Bearer token."),
    ] = "",
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


@config.command("show")
def config_show(
    origin: Annotated[bool, typer.Option("--origin", help="Say where each value is from.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Values and origins as JSON.")] = False,
    config_file: ConfigOption = None,
    sets: SetOption = None,
) -> None:
    """Print the settings in force, as a config file would say them. Keys of users stay hidden.

    \b
    Examples:
      omlx-server config show --origin
      OMLX_SERVER__PORT=9000 omlx-server config show --json
    """
    run("config", "show", origin=origin, as_json=as_json, config=config_file, sets=sets or [])


@config.command("path")
def config_path(config_file: ConfigOption = None) -> None:
    """Print the path of the config file in use; exit code 1 when there is none.

    \b
    Example:
      $EDITOR "$(omlx-server config path)"
    """
    run("config", "path", config=config_file)


@cache.command("stats")
def cache_stats(
    as_json: Annotated[bool, typer.Option("--json", help="The same as JSON.")] = False,
    directory: DirOption = None,
    config_file: ConfigOption = None,
    sets: SetOption = None,
) -> None:
    """Say what is kept for which model.

    Blocks, size, last use, and whether the model is still there.

    \b
    Examples:
      omlx-server cache stats
      omlx-server cache stats --json --dir /mnt/fast/kv

    A namespace is one model in one KV format; only the same model can use its blocks.
    """
    run("cache", "stats", as_json=as_json, directory=directory, config=config_file, sets=sets or [])


@cache.command("verify")
def cache_verify(
    delete: Annotated[bool, typer.Option("--delete", help="Remove what is damaged.")] = False,
    directory: DirOption = None,
    config_file: ConfigOption = None,
    sets: SetOption = None,
) -> None:
    """Read every block and check each byte.

    Exit code 1 if damaged ones were found and left.

    \b
    Examples:
      omlx-server cache verify
      omlx-server cache verify --delete

    \b
    A damaged block is never used: a server that meets one removes it and computes it again.
    Looking works while a server runs; --delete needs it stopped.
    """
    run("cache", "verify", delete=delete, directory=directory, config=config_file, sets=sets or [])


@cache.command("clear")
def cache_clear(
    model: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Only of this model, or namespace of `cache stats`."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Don't ask.")] = False,
    directory: DirOption = None,
    config_file: ConfigOption = None,
    sets: SetOption = None,
) -> None:
    """Remove all stored blocks, or those of one model. Other files in the directory stay.

    \b
    Examples:
      omlx-server cache clear
      omlx-server cache clear --model Qwen3-4B-4bit --yes

    Of a running server: curl -X POST http://127.0.0.1:8000/v1/cache/reset
    """
    run(
        "cache",
        "clear",
        model=model,
        yes=yes,
        directory=directory,
        config=config_file,
        sets=sets or [],
    )


@cache.command("trim")
def cache_trim(
    to: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Such as 5GB [default: cache.cold_cache_max_bytes]."),
    ] = None,
    directory: DirOption = None,
    config_file: ConfigOption = None,
    sets: SetOption = None,
) -> None:
    """Remove blocks until SIZE is left: the least recently used first.

    \b
    Examples:
      omlx-server cache trim --to 5GB
      omlx-server cache trim --set cache.cold_cache_max_bytes=10GB

    \b
    Ends of conversations go before their beginnings, and blocks of models that are gone before
    all others. A running server keeps to its budget by itself.
    """
    run("cache", "trim", to=to, directory=directory, config=config_file, sets=sets or [])


@cache.command("export")
def cache_export(
    output: Annotated[
        str,
        typer.Option("--output", "-o", metavar="FILE", help="Where to write; - is stdout."),
    ],
    prompt: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="A prompt as it is; - is stdin."),
    ] = None,
    conversation: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Messages as JSON, or a chat request; - is stdin."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Of this model, or namespace of `cache stats`."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Say it as JSON.")] = False,
    directory: DirOption = None,
    config_file: ConfigOption = None,
    sets: SetOption = None,
) -> None:
    """Write what is kept of a conversation to one file.

    \b
    Examples:
      omlx-server cache export --conversation talk.json -o talk.omlx
      omlx-server cache export --prompt system.txt --model Qwen3-4B-4bit -o system.omlx
      ssh box omlx-server cache export --conversation - -o - < talk.json > talk.omlx

    \b
    On another machine with the same model, `omlx-server cache import` takes it in, and the
    conversation goes on there without being computed again. Of a system prompt, everybody's does.

    \b
    talk.json is [{"role": "user", "content": "Hi"}, ...], or the body of a chat completion.
    Exit code 1 if nothing of it is stored. Works while a server runs.
    FILE is a tar: `tar tf FILE` shows what is inside. It holds the conversation's tokens, so keep
    it as you would keep its text.
    """
    run(
        "cache_export",
        prompt=prompt,
        conversation=conversation,
        output=output,
        model=model,
        as_json=as_json,
        config=config_file,
        sets=sets or [],
        directory=directory,
    )


@cache.command("import")
def cache_import(
    archive: Annotated[
        str, typer.Argument(metavar="FILE", help="What `omlx-server cache export` has written.")
    ],
    force: Annotated[
        bool, typer.Option("--force", help="Even if the model here is another one.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Say it as JSON.")] = False,
    directory: DirOption = None,
    config_file: ConfigOption = None,
    sets: SetOption = None,
) -> None:
    """Take in a conversation that was exported.

    \b
    Examples:
      omlx-server cache import talk.omlx
      omlx-server cache import talk.omlx --dir /mnt/fast/kv --json

    \b
    All of it is checked before anything is kept. If the cold tier is full, blocks that were not
    used for long go for it. Needs the server stopped; a running one: POST /v1/cache/import.
    The checks find damage, not malice: what is in FILE decides what the model answers, so import
    only what comes from people whom you trust.
    """
    run(
        "cache_import",
        archive=archive,
        force=force,
        as_json=as_json,
        config=config_file,
        sets=sets or [],
        directory=directory,
    )


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
