"""The root command: its help, and the errors of a wrong command line."""

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import takewhile
from typing import Any

import typer
from typer.core import TyperGroup

from omlx_server.cli.shell import output
from omlx_server.errors import UsageError

_KEY = (
    "Set the variable OMLX_AUTH__API_KEYS, or auth.api_keys in the config file: the list of "
    "processes shows options to everybody"
)
_CONTEXT = (
    "`omlx-server config set models.overrides.MODEL.context_length N` makes the context of a model "
    "shorter"
)
_NAME = "`omlx-server alias NEW MODEL` gives a model another name, which models.aliases keeps"
_ADAPTERS = (
    "`--adapter NAME` is the one of requests that name none; all that lie in the model's directory "
    "adapters/, or in adapters.directory, are served"
)
_MODEL = "The model is an argument: `omlx-server {command} MODEL`"
_MEMORY = "`--set memory.limit=48GB` is how much memory the server may take"
_LAYERS = "It is not needed: a GPU computes all layers"
_MACHINES = "`--hosts FILE` computes a model on several machines together"
_BATCH = "`--set scheduler.max_batch_size=N` is how many requests are computed at once"
OPTIONS = {
    "--api-key": _KEY,
    "--api-key-file": _KEY,
    "--max-model-len": _CONTEXT,
    "--ctx-size": _CONTEXT,
    "-c": _CONTEXT,
    "--num-ctx": _CONTEXT,
    "--served-model-name": _NAME,
    "--alias": _NAME,
    "-a": _NAME,
    "--lora-modules": _ADAPTERS,
    "--lora": _ADAPTERS,
    "--enable-lora": _ADAPTERS,
    "--model": _MODEL,
    "-m": _MODEL,
    "--gpu-memory-utilization": _MEMORY,
    "--n-gpu-layers": _LAYERS,
    "--gpu-layers": _LAYERS,
    "-ngl": _LAYERS,
    "--tensor-parallel-size": _MACHINES,
    "-tp": _MACHINES,
    "--parallel": _BATCH,
    "-np": _BATCH,
    "--max-num-seqs": _BATCH,
}
"""The advice for each; {command} stands for the called command."""
SECTIONS: Mapping[str, tuple[str, ...]] = {
    "Start": ("up", "serve", "chat", "launch"),
    "Models": ("search", "pull", "list", "show", "ps", "load", "unload", "pin", "alias", "rm"),
    "Look": ("status", "bench", "doctor", "version"),
    "Manage": ("config", "cache", "service", "rank"),
}
"""The headings of the help, and the commands below each."""
OF_OTHERS: Mapping[str, str] = {
    "run": "`omlx-server up MODEL`, which gets and serves it, or `omlx-server chat`",
    "start": "`omlx-server up`, or `omlx-server service start`",
    "stop": "`omlx-server unload MODEL`, `omlx-server service stop`, or Ctrl-C where `serve` runs",
    "restart": "`omlx-server service install`, which replaces a service that runs",
    "logs": "`omlx-server service logs`",
    "unpin": "`omlx-server pin MODEL --off`",
    "unalias": "`omlx-server alias --remove NAME`",
    "ls": "`omlx-server list`",
    "models": "`omlx-server list`, or `omlx-server ps` for those in a server",
    "remove": "`omlx-server rm MODEL`",
    "delete": "`omlx-server rm MODEL`",
    "get": "`omlx-server pull MODEL`",
    "download": "`omlx-server pull MODEL`",
    "info": "`omlx-server show MODEL`",
    "inspect": "`omlx-server show MODEL`",
    "settings": "`omlx-server config show`",
    "server": "`omlx-server serve MODEL`",
    "benchmark": "`omlx-server bench`",
    "install": "`omlx-server service install`",
}
"""Commands of Ollama, LM Studio, vLLM and llama.cpp, and ours that do the same."""
_HELP = "help"
_WORDS = "omlx_server.words"
# The name of a typer type, without " range" -> what it takes.
_NUMBERS = {"int": "a whole number", "float": "a number"}
_TO_STDOUT = re.compile(r"(^| )(-o ?|--output[ =])-( |$)")
"""`cache export -o -`: there stdout is the archive."""


def answer_to(option: str, words: Sequence[str], command: str) -> str:
    """Return the error for an `option` of these; else "". The parser reports a word such as -ngl
    of `words` as option -n."""
    before_dashes = takewhile(lambda word: word != "--", words)
    typed: Iterable[str] = (
        word.partition("=")[0] for word in before_dashes if word.startswith(option)
    )
    name = next((word for word in (option, *typed) if word in OPTIONS), "")
    return f"No such option: {name}. {OPTIONS[name].format(command=command)}." if name else ""


class Root(TyperGroup):
    """The root command. Its help has sections; errors of all command lines pass through it."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        # All lists get the column of the longest name.
        widest = max(map(len, self.commands))
        limit = formatter.width - 4 - widest
        for heading, members in SECTIONS.items():
            rows = [
                (name.ljust(widest), self.commands[name].get_short_help_str(limit))
                for name in members
            ]
            with formatter.section(heading):
                formatter.write_dl(rows)

    def make_context(self, info_name: Any, args: Any, parent: Any = None, **extra: Any) -> Any:
        if args[:1] == [_HELP]:
            args = [*args[1:], "--help"]
        words = tuple(args)  # typer takes them away one by one
        with _explained(words):
            context = super().make_context(info_name, args, parent, **extra)
        context.meta[_WORDS] = words
        return context

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except typer.TyperException as error:
            if args[0] in OF_OTHERS:
                ours = OF_OTHERS[args[0]]
                error.message = f"No such command '{args[0]}'. Did you mean {ours}?"
            raise

    def invoke(self, ctx: Any) -> Any:
        with _explained(ctx.meta[_WORDS]):
            return super().invoke(ctx)


@contextmanager
def _explained(words: Sequence[str]) -> Iterator[None]:
    try:
        yield
    except typer.TyperException as error:
        _say_what_is_meant(error, words)
        as_json = "--json" in takewhile(lambda word: word != "--", words)
        of_number = _of_number(error)
        if not (as_json or of_number):
            raise
        context = getattr(error, "ctx", None)
        hint = f"see `{context.command_path} --help`" if context else ""
        wrong = UsageError(of_number or error.format_message(), hint=hint)
        stream = sys.stderr if _TO_STDOUT.search(" ".join(words)) else None
        code = output.report(wrong, as_json=as_json, stream=stream)
        raise typer.Exit(code) from None


def _say_what_is_meant(error: Any, words: Sequence[str]) -> None:
    option: str = getattr(error, "option_name", "")
    context: Any = getattr(error, "ctx", None)
    parameters = context.command.params if option and context else ()
    takes_model = any(parameter.metavar == "MODEL" for parameter in parameters)
    if not takes_model or any(option in parameter.opts for parameter in parameters):
        return
    if answer := answer_to(option, words, context.info_name):
        error.message, error.possibilities = answer, None


def _of_number(error: typer.TyperException) -> str:
    if not isinstance(error, typer.BadParameter) or error.param is None:
        return ""
    kind: Any = error.param.type
    value, is_not, _ = error.message.rpartition(" is not ")
    number = _NUMBERS.get(kind.name.removesuffix(" range"))
    if not (is_not and number):
        return ""
    argument = error.param.human_readable_name
    name = next((word for word in error.param.opts if word.startswith("--")), argument)
    return f"{name}: {value.removesuffix('.0')} is not {number}{_bounds(kind)}"


def _bounds(kind: Any) -> str:
    if not kind.name.endswith("range"):
        return ""
    if kind.max is None:
        return f" of at least {kind.min}"
    return f" of at most {kind.max}" if kind.min is None else f" from {kind.min} to {kind.max}"
