"""Asks for messages on a terminal: lines can be edited, completed, and found again later."""

import os
import sys
import termios
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.shortcuts import CompleteStyle

from omlx_server.cli.shell.output import say
from omlx_server.cli.talk.terminal.several_lines import continued, is_open, message
from omlx_server.errors import OmlxError, system_errors_as
from omlx_server.settings.types import own_place
from omlx_server.settings.whole_file import OTHERS, PRIVATE_DIRECTORY, PRIVATE_FILE, replacing

# A file that is larger loses its older half when a conversation begins.
_MOST_BYTES = 1 << 20
_ENTRY = b"\n# "  # how prompt_toolkit begins an entry: its time, as a comment
_INPUT_FLAGS, _LOCAL_FLAGS = 0, 3  # of what tcgetattr returns


def history_file() -> Path:
    """Make the private file of what was typed in `chat`, and its directory. Raises OmlxError."""
    path = own_place("~/.local/state/omlx_server/chat_history")
    with system_errors_as(OmlxError, f"no history is kept: {path}"):
        path.parent.mkdir(mode=PRIVATE_DIRECTORY, parents=True, exist_ok=True)
        number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, PRIVATE_FILE)
        try:
            about = os.fstat(number)
            if about.st_mode & OTHERS:
                os.fchmod(number, PRIVATE_FILE)
        finally:
            os.close(number)
        if about.st_size > _MOST_BYTES:
            _halve(path)
    return path


def _halve(path: Path) -> None:
    data = path.read_bytes()
    begin = data.find(_ENTRY, len(data) - _MOST_BYTES // 2)
    with replacing(path, PRIVATE_FILE) as file:
        file.write(data[begin:] if begin >= 0 else b"")


class PromptLine:
    """A prompt for messages. `commands` can be completed; True if a file follows."""

    def __init__(self, commands: Mapping[str, bool], history: Path | None) -> None:
        self._history = InMemoryHistory() if history is None else _History(str(history))
        self._session: PromptSession[str] = PromptSession(
            "> ",
            multiline=True,
            prompt_continuation="  ",
            key_bindings=_keys(),
            completer=_Commands(commands),
            complete_while_typing=False,
            complete_style=CompleteStyle.READLINE_LIKE,
            history=self._history,
        )

    def read(self) -> str | None:
        """Return the next message; None at Ctrl-D. Ctrl-C clears the line, and raises
        KeyboardInterrupt if it is empty."""
        try:
            text = self._session.prompt()
        except EOFError:
            return None
        if isinstance(self._history, _History) and (problem := self._history.new_problem()):
            say(problem)
        return message(text)


class _History(FileHistory):
    def __init__(self, filename: str) -> None:
        super().__init__(filename)
        self._problem = ""
        self._is_told = False

    def new_problem(self) -> str:
        problem = "" if self._is_told else self._problem
        self._is_told = bool(self._problem)
        return problem

    def load_history_strings(self) -> Iterable[str]:
        try:
            return super().load_history_strings()
        except OSError as error:
            self._fail(error)
            return ()

    def store_string(self, string: str) -> None:
        if self._problem:
            return
        try:
            # Typed bytes that are no UTF-8 become lone surrogates.
            super().store_string(string.encode("utf-8", "replace").decode())
        except OSError as error:
            self._fail(error)

    def _fail(self, error: OSError) -> None:
        self._problem = f"[no history is kept: {error.strerror or error}]"


class _Commands(Completer):
    def __init__(self, commands: Mapping[str, bool]) -> None:
        self._commands = commands
        self._paths = PathCompleter(expanduser=True)

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterable[Completion]:
        text = document.text_before_cursor
        command, blank, path = text.partition(" ")
        if not blank and text.startswith("/"):
            for name in self._commands:
                if name.startswith(text):
                    yield Completion(name, start_position=-len(text))
        elif self._commands.get(command):
            yield from self._paths.get_completions(Document(path, len(path)), complete_event)


def _keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter")
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if is_open(buffer.text) and buffer.document.is_cursor_at_the_end:
            text = continued(buffer.text)
            buffer.document = Document(text, len(text))
        else:
            buffer.validate_and_handle()

    @keys.add("c-c")
    def _(event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=KeyboardInterrupt)

    @keys.add("escape", "enter")
    @keys.add("c-j")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.newline(copy_margin=False)

    return keys


@contextmanager
def kept_for_the_prompt() -> Iterator[None]:
    """Keep what is typed into an answer for the next prompt, without an echo."""
    before = termios.tcgetattr(sys.stdin)
    silent = termios.tcgetattr(sys.stdin)
    silent[_INPUT_FLAGS] &= ~termios.ICRNL  # else Enter would come as Ctrl-J
    silent[_LOCAL_FLAGS] &= ~(termios.ECHO | termios.ICANON)
    termios.tcsetattr(sys.stdin, termios.TCSADRAIN, silent)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
