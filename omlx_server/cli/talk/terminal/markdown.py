"""Renders Markdown and dimmed text for a terminal, which a model's text may not control."""

import re
from io import StringIO

from markdown_it import MarkdownIt
from rich.console import Console, RenderableType, RenderResult
from rich.console import ConsoleOptions as Options
from rich.markdown import CodeBlock, Heading, Markdown
from rich.syntax import Syntax
from rich.text import Text

from omlx_server.cli.shell.output import harmless

# Longer text is shown as it is: the parser may take quadratic time.
_MOST_CHARACTERS = 50_000
_STYLES = re.compile(r"\x1b\[[0-9;]*m")
_PARSER = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])
# Each block is rendered by itself, so a reference to an address in another block can't work.
_PARSER.disable("reference")
_BLOCK_PARSER = MarkdownIt("commonmark", {"html": False}).enable("table")
_BLOCK_PARSER.disable(["reference", "inline"])


def blocks_of(text: str) -> list[str]:
    """Split a text into its top-level blocks. Later lines can change the last one only."""
    lines = text.split("\n")
    tokens = _BLOCK_PARSER.parse(text)
    begins = [token.map[0] for token in tokens if token.level == 0 and token.map]
    ends = [*begins[1:], len(lines)]
    return ["\n".join(lines[begin:end]) for begin, end in zip(begins, ends, strict=False)]


class _Heading(Heading):
    def __rich_console__(self, console: Console, options: Options) -> RenderResult:
        yield self.text


class _Code(CodeBlock):
    """Highlighted code without a margin, so that it can be copied."""

    def __rich_console__(self, console: Console, options: Options) -> RenderResult:
        name = "" if self.lexer_name == "text" else harmless(self.lexer_name)
        yield Text(f"```{name}", style="dim")
        yield Syntax(
            str(self.text).rstrip(),
            self.lexer_name,
            theme="ansi_dark",
            background_color="default",
            word_wrap=True,
        )
        yield Text("```", style="dim")


class _Markdown(Markdown):
    elements = {  # noqa: RUF012, as the class of rich has it
        **Markdown.elements,
        "heading_open": _Heading,
        "fence": _Code,
        "code_block": _Code,
    }

    def __init__(self, text: str) -> None:
        super().__init__("", hyperlinks=False)
        self.markup = text
        self.parsed = _PARSER.parse(text)
        for token in self.parsed:
            for child in token.children or ():
                child.content = harmless(child.content)  # it may have been written as an entity
                if child.type == "softbreak":  # the lines of a poem stay lines
                    child.type = "hardbreak"


class Renderer:
    """Renders text for a terminal of `width` columns."""

    def __init__(self) -> None:
        self._console = Console(file=StringIO(), force_terminal=True, legacy_windows=False)

    @property
    def can_dim(self) -> bool:
        return not self._console.no_color

    def markdown(self, text: str, width: int) -> list[str]:
        text = harmless(text)
        if len(text) > _MOST_CHARACTERS:
            return self._render(Text(text), width)
        return self._render(_Markdown(text), width)

    def dimmed(self, text: str, width: int) -> list[str]:
        return self._render(Text(harmless(text), style="dim" if self.can_dim else ""), width)

    def _render(self, content: RenderableType, width: int) -> list[str]:
        with self._console.capture() as captured:
            self._console.print(content, width=width)
        lines = [line.rstrip(" ") for line in captured.get().split("\n")]
        while lines and _is_blank(lines[-1]):
            lines.pop()
        while lines and _is_blank(lines[0]):
            lines.pop(0)
        return lines


def _is_blank(line: str) -> bool:
    return not _STYLES.sub("", line).strip()
