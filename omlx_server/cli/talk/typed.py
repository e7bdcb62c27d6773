"""Reads messages from standard input line by line: from a pipe, or from a plain terminal."""

from contextlib import suppress

from omlx_server.cli.talk.terminal.several_lines import continued, is_open, message

with suppress(ImportError):  # some builds of Python lack it; with it, `input` can edit lines
    import readline  # noqa: F401


class TypedLines:
    """`prompt` is written before each message, and dots before its further lines; nothing is if it
    is empty."""

    def __init__(self, prompt: str) -> None:
        self._prompt = prompt

    def read(self) -> str | None:
        """The next message; None at the end of the input. Raises KeyboardInterrupt at Ctrl-C."""
        text = self._line(self._prompt)
        while text is not None and is_open(text):
            more = self._line("." * (len(self._prompt) - 1) + " " if self._prompt else "")
            if more is None:
                break
            text = continued(text) + more
        return None if text is None else message(text)

    def _line(self, prompt: str) -> str | None:
        try:
            return input(prompt)
        except (EOFError, RuntimeError):  # RuntimeError: stdin is closed
            if prompt:
                print()
            return None
