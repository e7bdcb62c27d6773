"""The commands of a conversation, such as /new."""

import difflib
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType

from omlx_server.cli.shell import output
from omlx_server.cli.talk import transcript
from omlx_server.cli.talk.client import TimedAnswer
from omlx_server.cli.talk.conversation import Conversation
from omlx_server.cli.talk.image import read_image, split
from omlx_server.errors import UsageError

_ONE_WORD = re.compile(r"/[^\s/]*")
_LEAVE = ("/exit", "/quit", "/bye")
_NOTHING = "-"
_LIST = "/help lists all"
_OF_OLLAMA = MappingProxyType(
    {
        "/set": "/system TEXT sets the system message; --temperature and others of "
        "`omlx-server chat --help` set the rest",
        "/show": "`omlx-server show NAME` tells all of a model, /system the system message",
    }
)
_KEYS = '''\
Ctrl-C               stops an answer, which is kept; twice at the prompt leaves
\\ at a line's end    goes on in the next line; so do Alt-Enter and Ctrl-J
"""                  begins and ends a message of several lines
Everything else is sent to the model.'''

Turn = Callable[[], TimedAnswer]
"""Asks the model and returns its answer. Raises as `Conversation.say`."""


@dataclass(frozen=True, slots=True)
class SlashCommand:
    """`argument` is shown in the help. `run` may return a turn to ask next."""

    names: tuple[str, ...]
    argument: str
    about: str
    run: Callable[[Conversation, str], Turn | None]


def leaves(line: str) -> bool:
    return line in _LEAVE


def is_command(line: str) -> bool:
    """Whether a message is a slash and letters, but no file such as /tmp."""
    name = line.split(maxsplit=1)[0]
    if name in _BY_NAME:
        return True
    if name.startswith("/") and name[1:].isalpha():
        return "\n" not in line and not _is_file(name)
    return _ONE_WORD.fullmatch(line) is not None


def _is_file(name: str) -> bool:
    with suppress(OSError):  # it is too long
        return Path(name).exists()
    return False


def run(line: str, conversation: Conversation) -> Turn | None:
    """Run the command in `line`; return a turn to ask next, if any. Raises OmlxError, and
    UsageError for an unknown command."""
    name, *arguments = line.split(maxsplit=1)
    command = _BY_NAME.get(name)
    if command is None:
        raise UsageError(f"{output.visible(name)}: no such command", hint=_hint(name.lower()))
    if arguments and not command.argument:
        raise UsageError(f"{name} takes no argument", hint=_LIST)
    return command.run(conversation, arguments[0] if arguments else "")


def completions() -> dict[str, bool]:
    """Return the commands' names, and whether a file follows."""
    return {name: c.argument.startswith("FILE") for c in COMMANDS for name in c.names}


def _hint(name: str) -> str:
    if name in _OF_OLLAMA:
        return _OF_OLLAMA[name]
    words = [command for command in _BY_NAME if command[1:].isalpha()]
    near = difflib.get_close_matches(name, words, n=1)
    return f"did you mean {near[0]}? {_LIST}" if near else _LIST


def _image(conversation: Conversation, argument: str) -> Turn | None:
    path, text = split(argument)
    image = read_image(path)
    conversation.pending_images.append(image)
    output.say(f"[{image.words}]" if text else f"[{image.words}; it goes with the next message]")
    return partial(conversation.say, text) if text else None


def _system(conversation: Conversation, argument: str) -> None:
    if argument:
        conversation.system = "" if argument == _NOTHING else argument
    output.say(output.harmless(conversation.system) or "[there is no system message]")


def _model(conversation: Conversation, argument: str) -> None:
    served = conversation.client.names()
    if argument and not any(argument in names for names in served):
        had = output.visible(", ".join(name for names in served for name in names))
        raise UsageError(f"the server has no {output.visible(argument)}", hint=f"it has {had}")
    if argument:
        conversation.model = argument
        _leave_preset_behind(conversation)
    for names in served:
        mark = "*" if conversation.model in names else " "
        output.say(f"{mark} {output.visible(', '.join(names))}")


def _leave_preset_behind(conversation: Conversation) -> None:
    preset, presets = conversation.preset, conversation.client.presets
    if preset and preset not in (presets(conversation.model) or ()):
        conversation.preset = ""
        model = output.visible(conversation.model)
        output.say(f"[{model} has no preset {preset}; the conversation goes on without]")


def _preset(conversation: Conversation, argument: str) -> None:
    if argument == _NOTHING:
        conversation.preset = argument = ""
    if argument:
        names: Sequence[str] | None = conversation.choose_preset(argument)
    else:
        names = conversation.client.presets(conversation.model)
    for name in names or ():
        output.say(f"{'*' if name == conversation.preset else ' '} {output.visible(name)}")
    if names is None:
        output.say("[the server tells nothing of presets]")
    elif not names:
        output.say(f"[{output.visible(conversation.model)} has no presets]")


def _new(conversation: Conversation, _: str) -> None:
    conversation.forget()
    note = "; the system message stays" if conversation.system else ""
    output.say(f"[a new conversation{note}]")


def _save(conversation: Conversation, argument: str) -> None:
    path = _file(argument)
    if not conversation.messages:
        raise UsageError("nothing was said yet")
    replaced = transcript.save(path, conversation.messages)
    output.say(f"[saved {'over' if replaced else 'to'} {output.visible(str(path))}]")


def _load(conversation: Conversation, argument: str) -> None:
    messages = transcript.load(_file(argument))
    conversation.replace(messages)
    output.say(f"[{output.counted(len(messages), 'message')}; the conversation goes on from there]")


def _file(argument: str) -> Path:
    if not argument:
        raise UsageError("a file is missing", hint="as in /save talk.json, or /load talk.json")
    path, remainder = split(argument)
    if remainder:
        raise UsageError("there is more than a file", hint="put a name with blanks in quotes")
    if "\0" in str(path):
        raise UsageError(f"{output.visible(str(path))} can't be the name of a file")
    return path


def _help(conversation: Conversation, _: str) -> None:
    usages = [f"{', '.join(command.names)} {command.argument}" for command in COMMANDS]
    pairs = zip(usages, COMMANDS, strict=True)
    lines = [f"{usage.strip():<21}{command.about}" for usage, command in pairs]
    output.say("\n".join([*lines, _KEYS]))


COMMANDS = (
    SlashCommand(
        ("/image",), "FILE [TEXT]", "shows an image: with TEXT, else with the next message", _image
    ),
    SlashCommand(("/system",), "[TEXT]", "shows or sets the system message; - removes it", _system),
    SlashCommand(("/model",), "[NAME]", "lists the models, or goes on with another", _model),
    SlashCommand(
        ("/preset",), "[NAME]", "lists the model's presets, or takes one; - takes none", _preset
    ),
    SlashCommand(
        ("/regenerate",), "", "asks the last question again", lambda talk, _: talk.regenerate
    ),
    SlashCommand(("/new", "/clear"), "", "begins anew; the system message stays", _new),
    SlashCommand(("/save",), "FILE", "writes the conversation to a file, as JSON", _save),
    SlashCommand(("/load",), "FILE", "replaces the conversation by that of a file", _load),
    SlashCommand(("/help", "/?"), "", "shows this", _help),
    # It does nothing: the loop that reads the lines ends at this one.
    SlashCommand(_LEAVE, "", "leaves; so does Ctrl-D", lambda *_: None),
)
_BY_NAME = MappingProxyType({name: command for command in COMMANDS for name in command.names})
