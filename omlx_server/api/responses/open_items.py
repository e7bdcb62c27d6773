"""An output item while it is being made, as events. Pure.

Order for each: output_item.added, what belongs to it, output_item.done. Events are made in the
order in which they are sent, and each takes the next of the response's `numbers`.
"""

from collections.abc import Iterator, Sequence

from omlx_server.api.chat.choices import LoggedToken
from omlx_server.api.openai import shapes
from omlx_server.api.openai.answers import TokenLogprob
from omlx_server.api.responses import answers, event_types
from omlx_server.api.responses.items.items import reasoning_shape
from omlx_server.api.responses.items.sealed import seal


class _Open:
    """An item on its way. `numbers` counts the events of its response."""

    def __init__(self, id: str, index: int, numbers: Iterator[int]) -> None:
        self._id = id
        self._index = index
        self._numbers = numbers
        self._pieces: list[str] = []

    @property
    def _text(self) -> str:
        """What has come."""
        return "".join(self._pieces)

    @property
    def _place(self) -> event_types.InPart:
        """Of a text in the item: each has but one."""
        return {"item_id": self._id, "output_index": self._index, "content_index": 0}

    def _added(self, item: answers.OutputItem) -> event_types.ItemEvent:
        return {
            "type": "response.output_item.added",
            "output_index": self._index,
            "item": item,
            "sequence_number": next(self._numbers),
        }

    def _part_added(
        self, part: answers.OutputText | answers.ReasoningText
    ) -> event_types.PartEvent:
        return {
            "type": "response.content_part.added",
            **self._place,
            "part": part,
            "sequence_number": next(self._numbers),
        }

    def _part_done(self, part: answers.OutputText | answers.ReasoningText) -> event_types.PartEvent:
        event = self._part_added(part)
        event["type"] = "response.content_part.done"
        return event

    def _done(self, item: answers.OutputItem) -> event_types.ItemEvent:
        event = self._added(item)
        event["type"] = "response.output_item.done"
        return event


class OpenMessage(_Open):
    def __init__(self, id: str, index: int, numbers: Iterator[int]) -> None:
        super().__init__(id, index, numbers)
        self._logged: list[TokenLogprob] = []

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
            "sequence_number": next(self._numbers),
        }
        return [event]

    def closing(self, status: answers.ItemStatus) -> list[event_types.AnyResponseEvent]:
        done: event_types.OutputTextDone = {
            "type": "response.output_text.done",
            **self._place,
            "text": self._text,
            "logprobs": list(self._logged),
            "sequence_number": next(self._numbers),
        }
        return [done, self._part_done(self._part()), self._done(self.shape(status))]

    def shape(self, status: answers.ItemStatus) -> answers.MessageOfResponse:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": [self._part()],
        }

    def _part(self) -> answers.OutputText:
        logged = list(self._logged)
        return {"type": "output_text", "text": self._text, "annotations": [], "logprobs": logged}


class OpenReasoning(_Open):
    """If `sealed`, its end carries the text for clients that keep nothing here."""

    def __init__(self, id: str, index: int, numbers: Iterator[int], *, sealed: bool) -> None:
        super().__init__(id, index, numbers)
        self._sealed = sealed

    def opening(self) -> list[event_types.AnyResponseEvent]:
        item: answers.ReasoningOfResponse = {**self.shape("in_progress"), "content": []}
        return [self._added(item), self._part_added(self._part())]

    def more(self, text: str) -> list[event_types.AnyResponseEvent]:
        self._pieces.append(text)
        event: event_types.ReasoningTextDelta = {
            "type": "response.reasoning_text.delta",
            **self._place,
            "delta": text,
            "sequence_number": next(self._numbers),
        }
        return [event]

    def closing(self, status: answers.ItemStatus) -> list[event_types.AnyResponseEvent]:
        done: event_types.ReasoningTextDone = {
            "type": "response.reasoning_text.done",
            **self._place,
            "text": self._text,
            "sequence_number": next(self._numbers),
        }
        return [done, self._part_done(self._part()), self._done(self.shape(status))]

    def shape(self, status: answers.ItemStatus) -> answers.ReasoningOfResponse:
        sealed = seal(self._text) if self._sealed and status != "in_progress" else None
        return reasoning_shape(self._id, [], [self._text], sealed, status)

    def _part(self) -> answers.ReasoningText:
        return {"type": "reasoning_text", "text": self._text}


class OpenCall(_Open):
    """A call of a function."""

    def __init__(
        self, id: str, index: int, numbers: Iterator[int], *, call_id: str, name: str
    ) -> None:
        super().__init__(id, index, numbers)
        self._call_id = call_id
        self._name = name

    def opening(self) -> list[event_types.AnyResponseEvent]:
        return [self._added(self.shape("in_progress"))]

    def more(self, fragment: str) -> list[event_types.AnyResponseEvent]:
        self._pieces.append(fragment)
        event: event_types.ArgumentsDelta = {
            "type": "response.function_call_arguments.delta",
            "item_id": self._id,
            "output_index": self._index,
            "delta": fragment,
            "sequence_number": next(self._numbers),
        }
        return [event]

    def closing(self, status: answers.ItemStatus) -> list[event_types.AnyResponseEvent]:
        done: event_types.ArgumentsDone = {
            "type": "response.function_call_arguments.done",
            "item_id": self._id,
            "output_index": self._index,
            "arguments": self._text,
            "sequence_number": next(self._numbers),
        }
        return [done, self._done(self.shape(status))]

    def shape(self, status: answers.ItemStatus) -> answers.FunctionCallOfResponse:
        return {
            "id": self._id,
            "type": "function_call",
            "call_id": self._call_id,
            "name": self._name,
            "arguments": self._text,
            "status": status,
        }


OpenItem = OpenMessage | OpenReasoning | OpenCall
