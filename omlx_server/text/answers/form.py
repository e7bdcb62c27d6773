"""What an answer's text can hold, and so how it is read. A value, one for all choices."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from omlx_server.text.reasoning.style import Opening, Style
from omlx_server.text.tools.families import Family
from omlx_server.text.tools.numbering import new_call_id


@dataclass(frozen=True, slots=True, eq=False)
class Form:
    """`continues`: the answer goes on within a text: a space that its first token begins with
    stays. `style`, if there are thoughts, how the prompt left them, and the markers besides its own
    that end one. `family`, if there may be calls, of these `tools`; not `many`: the second call
    ends the answer, and of `calls_only` any text is the rest of one that was cut. `shown`: control
    tokens that these are written with.
    """

    stops: tuple[str, ...] = ()
    include_stop: bool = False
    continues: bool = False
    style: Style | None = None
    opening: Opening = Opening.FREE
    ends: tuple[str, ...] = ()
    family: Family | None = None
    tools: tuple[Mapping[str, Any], ...] = ()
    many: bool = True
    calls_only: bool = False
    make_call_id: Callable[[], str] = new_call_id
    shown: frozenset[int] = frozenset()


PLAIN = Form()
