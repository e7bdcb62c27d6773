"""How the text of an answer is parsed. Immutable; one for all choices."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from omlx_server.text.reasoning.style import Opening, Style
from omlx_server.text.tool_calls.formats import CallFormat
from omlx_server.text.tool_calls.values import new_call_id


@dataclass(frozen=True, slots=True, eq=False)
class AnswerForm:
    """How the text of an answer is parsed."""

    stops: tuple[str, ...] = ()
    include_stop: bool = False
    # the answer goes on within a text, so a leading space of its first token stays
    continues: bool = False
    style: Style | None = None  # how thoughts are written; None without them
    opening: Opening = Opening.FREE  # how the prompt left them
    # each message begins with the name of its recipient (functionary 3.2)
    recipients: bool = False
    # how calls of `tools` are written; None without them and for calls in channels
    family: CallFormat | None = None
    tools: tuple[Mapping[str, Any], ...] = ()
    many: bool = True  # a second call does not end the answer
    calls_only: bool = False  # text is dropped: it is the rest of a call that was cut
    make_call_id: Callable[[], str] = new_call_id
    # ids of the control tokens whose text the parsers must see
    shown: frozenset[int] = frozenset()
