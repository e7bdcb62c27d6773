"""A parser driven as a stream drives it."""

from collections.abc import Iterable
from itertools import count
from typing import Any

from omlx_server.text.parts import Assembled, Part, assemble
from omlx_server.text.tool_calls.formats import FAMILIES
from omlx_server.text.tool_calls.parser import ToolParser
from omlx_server.text.tool_calls.values import Numbering
from tests.text.tool_calls.meanings import TOOLS


def parser_of(family: str, tools: list[dict[str, Any]] | None = None) -> ToolParser:
    numbers = count()
    numbering = Numbering(lambda: f"call_{next(numbers):x}")
    return ToolParser(FAMILIES[family], TOOLS if tools is None else tools, numbering)


def deltas_of(
    family: str, pieces: Iterable[str], tools: list[dict[str, Any]] | None = None
) -> list[Part]:
    parser = parser_of(family, tools)
    deltas = [delta for piece in pieces for delta in parser.feed(piece)]
    return deltas + parser.finish()


def read(
    family: str, pieces: Iterable[str], tools: list[dict[str, Any]] | None = None
) -> Assembled:
    return assemble(deltas_of(family, pieces, tools))
