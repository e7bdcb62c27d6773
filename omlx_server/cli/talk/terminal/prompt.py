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
from omlx_server.cli.talk.terminal.several_lines import continued, is_open, message_of
from omlx_server.errors import OmlxError, system_errors_as
from omlx_server.settings.types import own_place
from omlx_server.settings.whole_file import OTHERS, PRIVATE_DIRECTORY, PRIVATE_FILE, replacing

# A larger file loses its older half when a conversation begins.
_MOST_BYTES = 1 << 20
_ENTRY = b"\n# "  # how prompt_toolkit begins an entry: its time, as a comment
_INPUT_FLAGS, _LOCAL_FLAGS = 0, 3  # indices in the list that tcgetattr returns


def history_file() -> Path:
    """Make the private file of what was typed in `chat`, and its directory. Raises OmlxError."""
    path = own_place("~/.local/state/omlx_server/chat_history")
    with system_errors_as(OmlxError, f"no history is kept: {path}"):
        path.parent.mkdir(mode=PRIVATE_DIRECTORY, parents=True, exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, PRIVATE_FILE)
        try:
            status = os.fstat(fd)
            if status.st_mode & OTHERS:
                os.fchmod(fd, PRIVATE_FILE)
        finally:
            os.close(fd)
        if status.st_size > _MOST_BYTES:
            _keep_newest_half(path)
    return path


def _keep_newest_half(path: Path) -> None:
    data = path.read_bytes()
    begin = data.find(_ENTRY, len(data) - _MOST_BYTES // 2)
    with replacing(path, PRIVATE_FILE) as file:
        file.write(data[begin:] if begin >= 0 else b"")


class PromptLine:
    """A prompt for messages. It completes `commands`, and a path behind one whose value is True."""

    def __init__(self, commands: Mapping[str, bool], history: Path | None) -> None:
        self._history = InMemoryHistory() if history is None else _SafeHistory(str(history))
        self._session: PromptSession[str] = PromptSession(
            "> ",
            multiline=True,
            prompt_continuation="  ",
            key_bindings=_key_bindings(),
            completer=_CommandCompleter(commands),
            complete_while_typing=False,
            complete_style=CompleteStyle.READLINE_LIKE,
            history=self._history,
        )

    def read(self) -> str | None:
        """Return the next message; None at Ctrl-D. Ctrl-C clears a line, or interrupts."""
        try:
            text = self._session.prompt()
        except EOFError:
            return None
        if isinstance(self._history, _SafeHistory) and (problem := self._history.take_problem()):
            say(problem)
        return message_of(text)


class _SafeHistory(FileHistory):
    """A history that keeps nothing more once its file fails, instead of raising."""

    def __init__(self, filename: str) -> None:
        super().__init__(filename)
        self._has_failed = False
        self._untold_problem = ""

    def take_problem(self) -> str:
        """Return what has failed, the first time; else ""."""
        problem, self._untold_problem = self._untold_problem, ""
        return problem

    def load_history_strings(self) -> Iterable[str]:
        try:
            return super().load_history_strings()
        except OSError as error:
            self._fail(error)
            return ()

    def store_string(self, string: str) -> None:
        if self._has_failed:
            return
        try:
            # Typed bytes that are no UTF-8 become lone surrogates.
            super().store_string(string.encode("utf-8", "replace").decode())
        except OSError as error:
            self._fail(error)

    def _fail(self, error: OSError) -> None:
        self._has_failed = True
        self._untold_problem = f"[no history is kept: {error.strerror or error}]"


class _CommandCompleter(Completer):
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


def _key_bindings() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter")
    def end_line_or_message(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if is_open(buffer.text) and buffer.document.is_cursor_at_the_end:
            text = continued(buffer.text)
            buffer.document = Document(text, len(text))
        else:
            buffer.validate_and_handle()

    @keys.add("c-c")
    def clear_or_interrupt(event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=KeyboardInterrupt)

    @keys.add("escape", "enter")
    @keys.add("c-j")
    def begin_line(event: KeyPressEvent) -> None:
        event.current_buffer.newline(copy_margin=False)

    return keys


@contextmanager
def typing_ahead() -> Iterator[None]:
    """Keep what is typed during an answer for the next prompt, without showing it."""
    before = termios.tcgetattr(sys.stdin)
    silent = termios.tcgetattr(sys.stdin)
    silent[_INPUT_FLAGS] &= ~termios.ICRNL  # else Enter would come as Ctrl-J
    silent[_LOCAL_FLAGS] &= ~(termios.ECHO | termios.ICANON)
    termios.tcsetattr(sys.stdin, termios.TCSADRAIN, silent)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
