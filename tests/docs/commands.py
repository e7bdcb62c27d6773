"""The commands of a shell block, and what a test does with each: run it, judge its options by the
program's own parser, or let it be, for a reason."""

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from typer.main import get_command

from omlx_server import settings
from omlx_server.cli.app import app
from omlx_server.cli.shell.options import overrides_of
from tests.docs.blocks import ROOT, Block

PROGRAM = "omlx-server"
_DEFAULTS = ROOT / "config" / "omlx.example.toml"
_PROMPT = "$ "
_OPERATORS = (">", ">>", "<", "|")
"""What stands behind these is the shell's."""
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)

# Its commands are the examples of --help: many, and most of them like those of other pages.
JUDGED_PAGES = ("docs/reference/cli.md",)
# Not run, but their options and settings are those of the program.
JUDGED: Mapping[str, str] = MappingProxyType(
    {
        "omlx-server serve": "serves until Ctrl-C",
        "omlx-server up": "serves until Ctrl-C",
        "omlx-server rank": "needs a rank 0",
        "omlx-server pull": "needs the network",
        "omlx-server search qwen3": "needs the network",
        "omlx-server bench": "takes minutes",
        "omlx-server doctor --model": "takes minutes",
        "omlx-server doctor --hosts": "needs several machines",
        "omlx-server chat --image": "needs a photo, and a model that takes images",
        "omlx-server config edit": "opens an editor",
        "omlx-server service install": "changes the services of whoever runs the tests",
        "omlx-server service uninstall": "changes the services of whoever runs the tests",
        "omlx-server service start": "changes the services of whoever runs the tests",
        "omlx-server service stop": "changes the services of whoever runs the tests",
        "omlx-server service reload": "fails where there is no service",
        "omlx-server service status": "fails where there is no service",
        "omlx-server service logs": "fails where there is no service",
    }
)
# Not run at all. The first words of a command, and why.
LEFT: Mapping[str, str] = MappingProxyType(
    {
        "uv tool": "needs the network",
        "pipx": "needs the network",
        "pip install": "needs the network",
        "~/omlx/bin/pip": "needs the network",
        "~/omlx/bin/omlx-server": "is not installed here",
        "python3 -m venv": "makes a home for the two above",
        "git clone": "needs the network",
        "cd": "goes into the clone",
        "git pull": "changes the clone",
        "uvx": "needs the network; tests/packaging builds the distributions",
        "brew": "needs a Mac, and a tap",
        "packaging/homebrew/release": "tests/packaging runs it on a copy of the formula",
        "sudo": "changes the machine of whoever runs the tests",
        "ssh": "needs another machine",
        "scp": "needs another machine",
        "redis-server": "a program of others; scripts/campaign replicas runs it",
        "sglang-router": "a program of others; scripts/campaign replicas runs it",
        "vllm-router": "a program of others; scripts/campaign replicas runs it",
        "curl http://ROUTER:30000/workers": "asks a program of others",
        "mlx_lm.lora": "trains for minutes",
        "kill": "needs a server that is the reader's own",
        "docker": "a program of others, and the network",
        "claude": "a program of others",
        "aider": "a program of others",
        "open-webui": "a program of others",
        "llm": "a program of others",
    }
)
# Instead of a command that would become another program, or would wait for somebody.
RUN_AS: Mapping[str, str] = MappingProxyType(
    {
        "omlx-server launch": "omlx-server launch --print",
        "omlx-server cache clear": "omlx-server cache clear --yes",
        "omlx-server rm": "omlx-server rm --help --yes",  # the server at work has loaded it
    }
)


@dataclass(frozen=True, slots=True)
class Command:
    """`text` as the shell gets it; `words` without what is assigned before the program."""

    block: Block
    text: str
    words: tuple[str, ...]
    environ: Mapping[str, str]

    def __str__(self) -> str:
        return f"{self.block}: {' '.join(self.words)}"

    @property
    def key(self) -> tuple[str, ...]:
        """The same for commands that differ in spaces and comments."""
        return tuple(shlex.split(self.text, comments=True))

    def begins_with(self, name: str) -> bool:
        wanted = tuple(name.split())
        return self.words[: len(wanted)] == wanted

    def of(self, table: Mapping[str, str]) -> str | None:
        """What a table says of it."""
        return next((said for name, said in table.items() if self.begins_with(name)), None)

    def rewritten(self) -> str:
        """The text, or what stands for it in RUN_AS."""
        for name, instead in RUN_AS.items():
            if self.begins_with(name):
                return self.text.replace(name, instead, 1)
        return self.text

    @property
    def is_judged(self) -> bool:
        if self.block.page in JUDGED_PAGES and self.words[0] == PROGRAM:
            return True
        harmless = {"--dry-run", "--help"} & set(self.words)
        return self.of(JUDGED) is not None and not harmless


def commands_of(block: Block) -> Iterator[Command]:
    """Continued lines are one command; comments are none."""
    for text in _parted(_whole(_typed(block))):
        words = shlex.split(text.replace("\\\n", " "), comments=True)
        if not words:
            continue
        words = words[: next((n for n, word in enumerate(words) if word in _OPERATORS), None)]
        first = next((n for n, word in enumerate(words) if not _ASSIGNMENT.fullmatch(word)), 0)
        environ = dict(word.split("=", 1) for word in words[:first])
        yield Command(block, text, tuple(words[first:]), environ)


def _typed(block: Block) -> list[str]:
    lines = block.text.splitlines()
    if block.language != "console":
        return lines
    return [line.removeprefix(_PROMPT) for line in lines if line.startswith(_PROMPT)]


def _parted(texts: Iterable[str]) -> Iterator[str]:
    """`A && B` is two commands."""
    for text in texts:
        parts = text.split(" && ")
        yield from parts if all(map(_is_closed, parts)) else [text]


def _whole(lines: list[str]) -> Iterator[str]:
    """A backslash at the end, or an open quote, goes on in the next line."""
    text = ""
    for line in lines:
        text += line
        if text.endswith("\\") or not _is_closed(text):
            text += "\n"
            continue
        yield text
        text = ""
    assert not text.strip(), f"has no end: {text}"


def _is_closed(text: str) -> bool:
    try:
        shlex.split(text, comments=True)
    except ValueError:
        return False
    return True


def sub_command(command: Any, words: list[str]) -> tuple[Any, list[str]]:
    """The command below another that the first words name, and the rest of them."""
    while words and words[0] in getattr(command, "commands", {}):
        command, words = command.commands[words[0]], words[1:]
    return command, words


def judge(words: tuple[str, ...], environ: Mapping[str, str]) -> None:
    """Raises whatever the program would: for a wrong command, option or setting."""
    command, rest = sub_command(get_command(app), list(words))
    assert not hasattr(command, "commands"), f"no such command: {words}"
    context = command.make_context(PROGRAM, rest)
    sets = overrides_of(context.params.get("sets") or [], {})
    settings.load(_DEFAULTS, sets, environ)
