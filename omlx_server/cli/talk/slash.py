"""The commands of a conversation, such as /new."""

import difflib
import json
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from omlx_server.cli.shell import output
from omlx_server.cli.shell.output import visible
from omlx_server.cli.talk.client import Message, TimedAnswer
from omlx_server.cli.talk.conversation import Conversation
from omlx_server.cli.talk.image import read_image, split_path
from omlx_server.cli.talk.parameters import PARAMETERS, check_name, read_parameter
from omlx_server.errors import UsageError, system_errors_as
from omlx_server.settings.types import expanded
from omlx_server.settings.whole_file import PRIVATE_FILE, replacing

_ROLES = ("system", "user", "assistant")
_MOST_BYTES = 256 * 1024 * 1024
# JSON may hold these control characters, but `cat` would send them to a terminal.
_CONTROLS = re.compile(r"[\x7f-\x9f]")
EXITS = ("/exit", "/quit", "/bye")
_REMOVE = "-"  # the argument that removes what a command sets
_HELP_HINT = "/help lists all"


def save(path: Path, messages: Sequence[Message]) -> bool:
    """Write a private file; return whether it replaces one of `save`. Raises UsageError."""
    path = expanded(path)
    with system_errors_as(UsageError, visible(str(path))):
        replaced = path.exists()
    if replaced:
        _check_is_ours(path)
    text = json.dumps(messages, ensure_ascii=False, indent=2)
    text = _CONTROLS.sub(lambda control: f"\\u{ord(control[0]):04x}", text)
    with system_errors_as(UsageError, visible(str(path))), replacing(path, PRIVATE_FILE) as file:
        # A lone surrogate, which JSON may hold, is no text.
        file.write(text.encode("utf-8", "replace") + b"\n")
    return replaced


def load(path: Path) -> list[Message]:
    """Return each message's `role` and `content` from a JSON file. Raises UsageError."""
    return _messages_in(_read_json(path), visible(str(path)))


def _read_json(path: Path) -> Any:
    name = visible(str(path))
    path = expanded(path)
    with system_errors_as(UsageError, name):
        if path.exists() and not path.is_file():
            raise UsageError(f"{name} is no file")
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise UsageError(f"{name} is larger than {_MOST_BYTES >> 20} MiB")
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{name} is no JSON: {visible(str(error))}") from None


def _messages_in(document: Any, name: str) -> list[Message]:
    if isinstance(document, dict):
        document = document.get("messages")
    if not isinstance(document, list) or not document:
        raise UsageError(f"{name} has no list of messages", hint="/save writes one")
    return [
        _message_of(item, f"{name}, message {number}") for number, item in enumerate(document, 1)
    ]


def _message_of(item: Any, where: str) -> Message:
    if not isinstance(item, dict):
        raise UsageError(f"{where}: it is no object")
    role, content = item.get("role"), item.get("content")
    if role not in _ROLES:
        raise UsageError(f"{where}: its role is none of {', '.join(_ROLES)}")
    is_parts = isinstance(content, list) and all(isinstance(part, dict) for part in content)
    if not is_parts and not isinstance(content, str):
        raise UsageError(f"{where}: its content is neither a text nor a list of parts")
    return {"role": role, "content": content}


def _check_is_ours(path: Path) -> None:
    """Raise UsageError unless `save` wrote the file, so that `load` loses nothing of it."""
    name = visible(str(path))
    with suppress(UsageError):
        document = _read_json(path)
        if document == _messages_in(document, name):
            return
    hint = "name another, or remove it"
    raise UsageError(f"{name} is there, and no conversation that /save wrote", hint=hint)


_WORD_AFTER_SLASH = re.compile(r"/[^\s/]*")
# The hints for commands of Ollama that are other ones here.
_OLLAMA_HINTS = MappingProxyType(
    {
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
    """A command. Its `argument` is shown in the help. `run` may return a turn to ask next."""

    names: tuple[str, ...]
    argument: str
    about: str
    run: Callable[[Conversation, str], Turn | None]


def is_command(line: str) -> bool:
    """Whether a message is a known command, or looks like one and not like a path such as /tmp."""
    name = line.split(maxsplit=1)[0]
    if name in _BY_NAME:
        return True
    if name.startswith("/") and name[1:].isalpha():
        return "\n" not in line and not _is_file(name)
    return _WORD_AFTER_SLASH.fullmatch(line) is not None


def _is_file(name: str) -> bool:
    with suppress(OSError):  # it is too long
        return Path(name).exists()
    return False


def run(line: str, conversation: Conversation) -> Turn | None:
    """Run the command in `line`; return a turn to ask next, if any. Raises OmlxError."""
    name, *arguments = line.split(maxsplit=1)
    command = _BY_NAME.get(name)
    if command is None:
        raise UsageError(f"{output.visible(name)}: no such command", hint=_hint_for(name.lower()))
    if arguments and not command.argument:
        raise UsageError(f"{name} takes no argument", hint=_HELP_HINT)
    return command.run(conversation, arguments[0] if arguments else "")


def completions() -> dict[str, bool]:
    """Return the commands' names, and whether a file follows."""
    return {name: command.argument.startswith("FILE") for name, command in _BY_NAME.items()}


def _hint_for(name: str) -> str:
    if name in _OLLAMA_HINTS:
        return _OLLAMA_HINTS[name]
    words = [command for command in _BY_NAME if command[1:].isalpha()]
    similar = difflib.get_close_matches(name, words, n=1)
    return f"did you mean {similar[0]}? {_HELP_HINT}" if similar else _HELP_HINT


def _run_image(conversation: Conversation, argument: str) -> Turn | None:
    path, text = split_path(argument)
    image = read_image(path)
    conversation.pending_images.append(image)
    output.say(f"[{image.words}]" if text else f"[{image.words}; it goes with the next message]")
    return partial(conversation.say, text) if text else None


def _run_system(conversation: Conversation, argument: str) -> None:
    if argument:
        conversation.system = "" if argument == _REMOVE else argument
    output.say(output.harmless(conversation.system) or "[there is no system message]")


def _run_set(conversation: Conversation, argument: str) -> None:
    words = argument.removeprefix("parameter ").split(maxsplit=1)  # which Ollama wants
    if words:
        name, *texts = words
        check_name(name)
        if texts == [_REMOVE]:
            conversation.fields.pop(name, None)
        elif texts:
            conversation.fields[name] = read_parameter(name, texts[0])
    names = words[:1] or [name for name in PARAMETERS if name in conversation.fields]
    for name in names:
        value = conversation.fields.get(name)
        in_words = "the server's" if value is None else output.visible(json.dumps(value))
        output.say(f"[{name}: {in_words}]")
    if not names:
        output.say("[nothing is set; the server's values count]")


def _run_model(conversation: Conversation, argument: str) -> None:
    served = conversation.client.names()
    if argument and not any(argument in names for names in served):
        all_names = output.visible(", ".join(name for names in served for name in names))
        hint = f"it has {all_names}"
        raise UsageError(f"the server has no {output.visible(argument)}", hint=hint)
    if argument:
        conversation.model = argument
        _drop_unknown_preset(conversation)
    for names in served:
        mark = "*" if conversation.model in names else " "
        output.say(f"{mark} {output.visible(', '.join(names))}")


def _drop_unknown_preset(conversation: Conversation) -> None:
    preset = conversation.preset
    if preset and preset not in (conversation.client.presets(conversation.model) or ()):
        conversation.preset = ""
        model = output.visible(conversation.model)
        output.say(f"[{model} has no preset {preset}; the conversation goes on without]")


def _run_preset(conversation: Conversation, argument: str) -> None:
    if argument == _REMOVE:
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


def _run_new(conversation: Conversation, _: str) -> None:
    conversation.forget()
    note = "; the system message stays" if conversation.system else ""
    output.say(f"[a new conversation{note}]")


def _run_save(conversation: Conversation, argument: str) -> None:
    path = _file_of(argument)
    if not conversation.messages:
        raise UsageError("nothing was said yet")
    replaced = save(path, conversation.messages)
    output.say(f"[saved {'over' if replaced else 'to'} {output.visible(str(path))}]")


def _run_load(conversation: Conversation, argument: str) -> None:
    messages = load(_file_of(argument))
    conversation.replace(messages)
    output.say(f"[{output.counted(len(messages), 'message')}; the conversation goes on from there]")


def _file_of(argument: str) -> Path:
    if not argument:
        raise UsageError("a file is missing", hint="as in /save talk.json, or /load talk.json")
    path, remainder = split_path(argument)
    if remainder:
        raise UsageError("there is more than a file", hint="put a name with blanks in quotes")
    if "\0" in str(path):
        raise UsageError(f"{output.visible(str(path))} can't be the name of a file")
    return path


def _run_help(conversation: Conversation, _: str) -> None:
    usages = [f"{', '.join(command.names)} {command.argument}" for command in COMMANDS]
    pairs = zip(usages, COMMANDS, strict=True)
    lines = [f"{usage.strip():<21}{command.about}" for usage, command in pairs]
    output.say("\n".join([*lines, _KEYS]))


COMMANDS = (
    SlashCommand(
        ("/image",),
        "FILE [TEXT]",
        "shows an image: with TEXT, else with the next message",
        _run_image,
    ),
    SlashCommand(
        ("/system",), "[TEXT]", "shows or sets the system message; - removes it", _run_system
    ),
    SlashCommand(
        ("/set",), "[NAME] [VALUE]", "shows or sets temperature, top_p, …; - unsets one", _run_set
    ),
    SlashCommand(("/model",), "[NAME]", "lists the models, or goes on with another", _run_model),
    SlashCommand(
        ("/preset",), "[NAME]", "lists the model's presets, or takes one; - takes none", _run_preset
    ),
    SlashCommand(
        ("/regenerate",), "", "asks the last question again", lambda talk, _: talk.regenerate
    ),
    SlashCommand(("/new", "/clear"), "", "begins anew; the system message stays", _run_new),
    SlashCommand(("/save",), "FILE", "writes the conversation to a file, as JSON", _run_save),
    SlashCommand(("/load",), "FILE", "replaces the conversation by that of a file", _run_load),
    SlashCommand(("/help", "/?"), "", "shows this", _run_help),
    # It does nothing: the loop that reads the lines ends at this one.
    SlashCommand(EXITS, "", "leaves; so does Ctrl-D", lambda *_: None),
)
_BY_NAME = MappingProxyType({name: command for command in COMMANDS for name in command.names})
