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

_ADVICE_ON_OPTIONS = {
    ("--api-key", "--api-key-file"): (
        "Set the variable OMLX_AUTH__API_KEYS, or auth.api_keys in the config file: the list of "
        "processes shows options to everybody"
    ),
    ("--max-model-len", "--ctx-size", "-c", "--num-ctx"): (
        "`omlx-server config set models.overrides.MODEL.context_length N` makes the context of a "
        "model shorter"
    ),
    ("--served-model-name", "--alias", "-a"): (
        "`omlx-server alias NEW MODEL` gives a model another name, which models.aliases keeps"
    ),
    ("--lora-modules", "--lora", "--enable-lora"): (
        "`--adapter NAME` is the one of requests that name none; all that lie in the model's "
        "directory adapters/, or in adapters.directory, are served"
    ),
    ("--model", "-m"): "The model is an argument: `omlx-server {command} MODEL`",
    ("--gpu-memory-utilization",): (
        "`--set memory.limit=48GB` is how much memory the server may take"
    ),
    ("--n-gpu-layers", "--gpu-layers", "-ngl"): "It is not needed: a GPU computes all layers",
    ("--tensor-parallel-size", "-tp"): (
        "`--hosts FILE` computes a model on several machines together"
    ),
    ("--parallel", "-np", "--max-num-seqs"): (
        "`--set scheduler.max_batch_size=N` is how many requests are computed at once"
    ),
}
OPTIONS_OF_OTHERS = {
    option: advice for options, advice in _ADVICE_ON_OPTIONS.items() for option in options
}
"""Options of other servers, and the advice for each; {command} is the typed command."""
SECTIONS: Mapping[str, tuple[str, ...]] = {
    "Start": ("up", "serve", "chat", "launch"),
    "Models": ("search", "pull", "list", "show", "ps", "load", "unload", "pin", "alias", "rm"),
    "Look": ("status", "bench", "doctor", "version"),
    "Manage": ("config", "cache", "service", "rank"),
}
"""The headings of the help, and the commands below each."""
COMMANDS_OF_OTHERS: Mapping[str, str] = {
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
_WORDS = "omlx_server.words"  # where the context keeps the command line
# The words for typer's types of numbers. A type with bounds is named "int range".
_NUMBERS = {"int": "a whole number", "float": "a number"}
# With `cache export -o -` stdout is the archive, so errors go to stderr.
_WRITES_TO_STDOUT = re.compile(r"(^| )(-o ?|--output[ =])-( |$)")


def _advice_on(option: str, words: Sequence[str], command: str) -> str:
    """Return the error for an option of another server; "" for any other option."""
    # typer calls the typed word -ngl an option -n.
    typed = [word.partition("=")[0] for word in _before_dashes(words) if word.startswith(option)]
    for name in (option, *typed):
        if name in OPTIONS_OF_OTHERS:
            return f"No such option: {name}. {OPTIONS_OF_OTHERS[name].format(command=command)}."
    return ""


def _before_dashes(words: Iterable[str]) -> Iterable[str]:
    return takewhile(lambda word: word != "--", words)


class Root(TyperGroup):
    """The root command. Its help has sections; errors of all command lines pass through it."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        # All sections get the column of the longest name.
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
        with _errors_explained(words):
            context = super().make_context(info_name, args, parent, **extra)
        context.meta[_WORDS] = words
        return context

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except typer.TyperException as error:
            if args[0] in COMMANDS_OF_OTHERS:
                ours = COMMANDS_OF_OTHERS[args[0]]
                error.message = f"No such command '{args[0]}'. Did you mean {ours}?"
            raise

    def invoke(self, ctx: Any) -> Any:
        with _errors_explained(ctx.meta[_WORDS]):
            return super().invoke(ctx)


@contextmanager
def _errors_explained(words: Sequence[str]) -> Iterator[None]:
    """Turn typer's errors into ours for numbers and for JSON, and add advice to others."""
    try:
        yield
    except typer.TyperException as error:
        _add_advice(error, words)
        as_json = "--json" in _before_dashes(words)
        number_error = _number_error(error)
        if not (as_json or number_error):
            raise
        context = getattr(error, "ctx", None)
        hint = f"see `{context.command_path} --help`" if context else ""
        usage_error = UsageError(number_error or error.format_message(), hint=hint)
        stream = sys.stderr if _WRITES_TO_STDOUT.search(" ".join(words)) else None
        code = output.report_error(usage_error, as_json=as_json, stream=stream)
        raise typer.Exit(code) from None


def _add_advice(error: Any, words: Sequence[str]) -> None:
    """Change the error of a command with a model that does not know an option of others."""
    option: str = getattr(error, "option_name", "")
    context: Any = getattr(error, "ctx", None)
    if not option or context is None:
        return
    parameters = context.command.params
    takes_model = any(parameter.metavar == "MODEL" for parameter in parameters)
    is_known = any(option in parameter.opts for parameter in parameters)
    if takes_model and not is_known and (advice := _advice_on(option, words, context.info_name)):
        error.message, error.possibilities = advice, None


def _number_error(error: typer.TyperException) -> str:
    """Return what is wrong with a number, and its bounds; "" for other errors."""
    if not isinstance(error, typer.BadParameter) or error.param is None:
        return ""
    kind: Any = error.param.type
    value, is_not, _ = error.message.rpartition(" is not ")
    number = _NUMBERS.get(kind.name.removesuffix(" range"))
    if not (is_not and number):
        return ""
    argument = error.param.human_readable_name
    name = next((word for word in error.param.opts if word.startswith("--")), argument)
    return f"{name}: {value.removesuffix('.0')} is not {number}{_bounds_in_words(kind)}"


def _bounds_in_words(kind: Any) -> str:
    if not kind.name.endswith("range"):
        return ""
    if kind.max is None:
        return f" of at least {kind.min}"
    if kind.min is None:
        return f" of at most {kind.max}"
    return f" from {kind.min} to {kind.max}"
