"""Renders Markdown and dimmed text as lines of a terminal, with rich. A model's text may not
control the terminal; HTML is shown as it is."""

import re
from io import StringIO

from markdown_it import MarkdownIt
from rich.console import Console, RenderableType, RenderResult
from rich.console import ConsoleOptions as Options
from rich.markdown import CodeBlock, Heading, Markdown
from rich.syntax import Syntax
from rich.text import Text

from omlx_server.cli.shell.output import harmless

# The parser may take quadratic time for other text.
_MOST_CHARACTERS = 50_000
_STYLES = re.compile(r"\x1b\[[0-9;]*m")
_PARSER = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])
# A reference could name an address in another block, which is rendered by itself.
_PARSER.disable("reference")
_BLOCKS = MarkdownIt("commonmark", {"html": False}).enable("table").disable(["reference", "inline"])


def blocks_of(text: str) -> list[str]:
    """Split a text into its top-level blocks. Later lines can change the last one only."""
    lines = text.split("\n")
    tokens = _BLOCKS.parse(text)
    begins = [token.map[0] for token in tokens if token.level == 0 and token.map]
    ends = [*begins[1:], len(lines)]
    return ["\n".join(lines[a:b]) for a, b in zip(begins, ends, strict=False)]


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
    def __init__(self) -> None:
        self._console = Console(file=StringIO(), force_terminal=True, legacy_windows=False)

    @property
    def dims(self) -> bool:
        return not self._console.no_color

    def markdown(self, text: str, width: int) -> list[str]:
        text = harmless(text)
        if len(text) > _MOST_CHARACTERS:
            return self._lines(Text(text), width)
        return self._lines(_Markdown(text), width)

    def dimmed(self, text: str, width: int) -> list[str]:
        return self._lines(Text(harmless(text), style="dim" if self.dims else ""), width)

    def _lines(self, content: RenderableType, width: int) -> list[str]:
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
