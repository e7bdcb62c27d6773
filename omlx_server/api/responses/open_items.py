"""Makes the events of output items while they grow, in the order of sending. Pure.

Each item has output_item.added, the events of its content, and output_item.done.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from omlx_server.api.chat.choices import LoggedToken
from omlx_server.api.chat.custom_tools import InputReader
from omlx_server.api.openai import shapes
from omlx_server.api.openai.answers import TokenLogprob
from omlx_server.api.responses import answers, event_types
from omlx_server.api.responses.items.items import call_shape, reasoning_shape
from omlx_server.api.responses.items.seals import seal_reasoning


@dataclass(slots=True, eq=False)
class _Open:
    """A growing item. `index`: its place in the output; `numbers` counts the response's events."""

    id: str
    index: int
    numbers: Iterator[int]
    _pieces: list[str] = field(default_factory=list)

    @property
    def _text(self) -> str:
        return "".join(self._pieces)

    @property
    def _place(self) -> event_types.InPart:
        """The fields that name the item's only content part."""
        return {"item_id": self.id, "output_index": self.index, "content_index": 0}

    def _added(self, item: answers.OutputItem) -> event_types.ItemEvent:
        return {
            "type": "response.output_item.added",
            "output_index": self.index,
            "item": item,
            "sequence_number": next(self.numbers),
        }

    def _part_added(
        self, part: answers.OutputText | answers.ReasoningText
    ) -> event_types.PartEvent:
        return {
            "type": "response.content_part.added",
            **self._place,
            "part": part,
            "sequence_number": next(self.numbers),
        }

    def _part_done(self, part: answers.OutputText | answers.ReasoningText) -> event_types.PartEvent:
        event = self._part_added(part)
        event["type"] = "response.content_part.done"
        return event

    def _done(self, item: answers.OutputItem) -> event_types.ItemEvent:
        event = self._added(item)
        event["type"] = "response.output_item.done"
        return event


@dataclass(slots=True, eq=False)
class OpenMessage(_Open):
    _logged: list[TokenLogprob] = field(default_factory=list)

    def opening(self) -> list[event_types.AnyResponseEvent]:
        item: answers.MessageOfResponse = {**self.shape("in_progress"), "content": []}
        return [self._added(item), self._part_added(self._part())]

    def more(self, text: str, tokens: Sequence[LoggedToken]) -> list[event_types.AnyResponseEvent]:
        logged = shapes.logprobs(tokens)
        self._pieces.append(text)
        self._logged += logged
        event: event_types.OutputTextDelta = {
            "type": "response.output_text.delta",
            **self._place,
            "delta": text,
            "logprobs": logged,
            "sequence_number": next(self.numbers),
        }
        return [event]

    def closing(self, status: answers.ItemStatus) -> list[event_types.AnyResponseEvent]:
        done: event_types.OutputTextDone = {
            "type": "response.output_text.done",
            **self._place,
            "text": self._text,
            "logprobs": list(self._logged),
            "sequence_number": next(self.numbers),
        }
        return [done, self._part_done(self._part()), self._done(self.shape(status))]

    def shape(self, status: answers.ItemStatus) -> answers.MessageOfResponse:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": [self._part()],
        }

    def _part(self) -> answers.OutputText:
        logged = list(self._logged)
        return {"type": "output_text", "text": self._text, "annotations": [], "logprobs": logged}


@dataclass(slots=True, eq=False, kw_only=True)
class OpenReasoning(_Open):
    """Growing reasoning; if `sealed`, the finished item has `encrypted_content`."""

    sealed: bool

    def opening(self) -> list[event_types.AnyResponseEvent]:
        item: answers.ReasoningOfResponse = {**self.shape("in_progress"), "content": []}
        return [self._added(item), self._part_added(self._part())]

    def more(self, text: str) -> list[event_types.AnyResponseEvent]:
        self._pieces.append(text)
        event: event_types.ReasoningTextDelta = {
            "type": "response.reasoning_text.delta",
            **self._place,
            "delta": text,
            "sequence_number": next(self.numbers),
        }
        return [event]

    def closing(self, status: answers.ItemStatus) -> list[event_types.AnyResponseEvent]:
        done: event_types.ReasoningTextDone = {
            "type": "response.reasoning_text.done",
            **self._place,
            "text": self._text,
            "sequence_number": next(self.numbers),
        }
        return [done, self._part_done(self._part()), self._done(self.shape(status))]

    def shape(self, status: answers.ItemStatus) -> answers.ReasoningOfResponse:
        sealed = seal_reasoning(self._text) if self.sealed and status != "in_progress" else None
        return reasoning_shape(self.id, [], [self._text], sealed, status)

    def _part(self) -> answers.ReasoningText:
        return {"type": "reasoning_text", "text": self._text}


@dataclass(slots=True, eq=False, kw_only=True)
class OpenCall(_Open):
    """A growing call of a function, or with `reader` of a custom tool. `tool`: name, namespace."""

    call_id: str
    tool: tuple[str, str | None]
    reader: InputReader | None = None

    def opening(self) -> list[event_types.AnyResponseEvent]:
        return [self._added(self.shape("in_progress"))]

    def more(self, fragment: str) -> list[event_types.AnyResponseEvent]:
        if self.reader is None:
            return [self._delta("response.function_call_arguments.delta", fragment)]
        return self._input(self.reader.feed(fragment))

    def closing(self, status: answers.ItemStatus) -> list[event_types.AnyResponseEvent]:
        if self.reader is None:
            arguments: event_types.ArgumentsDone = {
                "type": "response.function_call_arguments.done",
                "item_id": self.id,
                "output_index": self.index,
                "arguments": self._text,
                "sequence_number": next(self.numbers),
            }
            return [arguments, self._done(self.shape(status))]
        last = self._input(self.reader.finish())
        done: event_types.InputDone = {
            "type": "response.custom_tool_call_input.done",
            "item_id": self.id,
            "output_index": self.index,
            "input": self._text,
            "sequence_number": next(self.numbers),
        }
        return [*last, done, self._done(self.shape(status))]

    def shape(
        self, status: answers.ItemStatus
    ) -> answers.FunctionCallOfResponse | answers.CustomCallOfResponse:
        is_custom = self.reader is not None
        return call_shape(self.id, self.call_id, self.tool, self._text, status, is_custom=is_custom)

    def _input(self, text: str) -> list[event_types.AnyResponseEvent]:
        return [self._delta("response.custom_tool_call_input.delta", text)] if text else []

    def _delta(self, kind: event_types.CallDeltaType, text: str) -> event_types.CallDelta:
        self._pieces.append(text)
        return {
            "type": kind,
            "item_id": self.id,
            "output_index": self.index,
            "delta": text,
            "sequence_number": next(self.numbers),
        }


OpenItem = OpenMessage | OpenReasoning | OpenCall
