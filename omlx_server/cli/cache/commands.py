"""The commands, options and help texts of `omlx-server cache`."""

from pathlib import Path
from typing import Annotated

import typer

from omlx_server.cli.shell.command import (
    Commands,
    ConfigOption,
    JsonOption,
    SetOption,
    flag,
    option,
)

_HELP = """Look after the blocks that are kept on disk.

\b
Examples:
  omlx-server cache stats
  omlx-server cache trim --to 5GB
"""
cache = Commands(no_args_is_help=True, help=_HELP)

DirOption = Annotated[
    Path | None, option("PATH", "The directory [default: cache.cold_dir].", "--dir")
]
OutputOption = Annotated[str, option("FILE", "Where to write; - is stdout.", "--output", "-o")]
PromptOption = Annotated[str | None, option("FILE", "A prompt as it is; - is stdin.")]
ConversationOption = Annotated[
    str | None, option("FILE", "Messages as JSON, or a chat request; - is stdin.")
]
ModelOption = Annotated[str | None, option("NAME", "Of this model, or namespace of `cache stats`.")]
ArchiveArgument = Annotated[
    str, typer.Argument(metavar="FILE", help="What `omlx-server cache export` has written.")
]
ForceOption = Annotated[bool, flag("Even if the model here is another one.", "--force")]


@cache.command("stats")
def cache_stats(
    as_json: JsonOption = False,
    directory: DirOption = None,
    config_file: ConfigOption = None,
    sets: SetOption = None,
) -> int:
    """Say what is kept for which model.

    Blocks, size, last use, and whether the model is still there.

    \b
    Examples:
      omlx-server cache stats
      omlx-server cache stats --json --dir /mnt/fast/kv

    A namespace is one model in one KV format; only the same model can use its blocks.
    """
    from omlx_server.cli.cache.cache import cache_settings, stats

    return stats(cache_settings(config_file, sets, directory), as_json=as_json)


@cache.command("verify")
def cache_verify(
    delete: Annotated[bool, flag("Remove what is damaged.", "--delete")] = False,
    directory: DirOption = None,
    config_file: ConfigOption = None,
    sets: SetOption = None,
) -> int:
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
    from omlx_server.cli.cache.cache import cache_settings, verify

    return verify(cache_settings(config_file, sets, directory), delete=delete)


@cache.command("clear")
def cache_clear(
    model: Annotated[
        str | None, option("NAME", "Only of this model, or namespace of `cache stats`.")
    ] = None,
    yes: Annotated[bool, flag("Don't ask.", "--yes", "-y")] = False,
    directory: DirOption = None,
    config_file: ConfigOption = None,
    sets: SetOption = None,
) -> int:
    """Remove all stored blocks, or those of one model. Other files in the directory stay.

    \b
    Examples:
      omlx-server cache clear
      omlx-server cache clear --model Qwen3-4B-4bit --yes

    Of a running server: curl -X POST http://127.0.0.1:8000/v1/cache/reset
    """
    from omlx_server.cli.cache.cache import cache_settings, clear

    return clear(cache_settings(config_file, sets, directory), model=model, yes=yes)


@cache.command("trim")
def cache_trim(
    to: Annotated[
        str | None, option("SIZE", "Such as 5GB [default: cache.cold_cache_max_bytes].")
    ] = None,
    directory: DirOption = None,
    config_file: ConfigOption = None,
    sets: SetOption = None,
) -> int:
    """Remove blocks until SIZE is left: the least recently used first.

    \b
    Examples:
      omlx-server cache trim --to 5GB
      omlx-server cache trim --set cache.cold_cache_max_bytes=10GB

    \b
    Ends of conversations go before their beginnings, and blocks of models that are gone before
    all others. A running server keeps to its budget by itself.
    """
    from omlx_server.cli.cache.cache import cache_settings, trim

    return trim(cache_settings(config_file, sets, directory), to=to)


@cache.command("export")
def cache_export(
    output: OutputOption,
    prompt: PromptOption = None,
    conversation: ConversationOption = None,
    model: ModelOption = None,
    as_json: JsonOption = False,
    directory: DirOption = None,
    config_file: ConfigOption = None,
    sets: SetOption = None,
) -> int:
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
    from omlx_server.cli.cache.cache import cache_settings
    from omlx_server.cli.cache.export import run

    return run(
        cache_settings(config_file, sets, directory),
        prompt=prompt,
        conversation=conversation,
        output=output,
        model=model,
        as_json=as_json,
    )


@cache.command("import")
def cache_import(
    archive: ArchiveArgument,
    force: ForceOption = False,
    as_json: JsonOption = False,
    directory: DirOption = None,
    config_file: ConfigOption = None,
    sets: SetOption = None,
) -> int:
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
    from omlx_server.cli.cache.cache import cache_settings
    from omlx_server.cli.cache.import_ import run

    cache = cache_settings(config_file, sets, directory)
    return run(cache, archive=archive, force=force, as_json=as_json)
