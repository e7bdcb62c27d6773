"""An output item while it is being made, as events. Pure; the events are numbered by `Progress`.

Order for each: output_item.added, what belongs to it, output_item.done.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from omlx_server.api.choices import LoggedToken
from omlx_server.api.openai import shapes
from omlx_server.api.openai.answers import TokenLogprob
from omlx_server.api.responses.items import ItemJson
from omlx_server.api.responses.sealed import seal

Event = dict[str, Any]


class OpenItem(Protocol):
    def opening(self) -> list[Event]:
        """What tells of its beginning."""

    def closing(self, status: str) -> list[Event]:
        """What tells of its end."""

    def shape(self, status: str) -> ItemJson:
        """The item as far as it has come."""


class OpenText:
    """One part of text in an item: the answer, or the reasoning."""

    def __init__(self, id: str, index: int, kind: str) -> None:
        self._id = id
        self._index = index
        self._kind = kind
        self._texts: list[str] = []

    def opening(self) -> list[Event]:
        item = {**self.shape("in_progress"), "content": []}
        return [
            {"type": "response.output_item.added", "output_index": self._index, "item": item},
            self._event("response.content_part.added", part=self.part()),
        ]

    def closing(self, status: str) -> list[Event]:
        part, item = self.part(), self.shape(status)
        return [
            self._event(f"response.{self._kind}.done", **self._done()),
            self._event("response.content_part.done", part=part),
            {"type": "response.output_item.done", "output_index": self._index, "item": item},
        ]

    def part(self) -> ItemJson:
        return {"type": self._kind, "text": "".join(self._texts)}

    def shape(self, status: str) -> ItemJson:
        raise NotImplementedError

    def _delta(self, text: str, **fields: Any) -> Event:
        self._texts.append(text)
        return self._event(f"response.{self._kind}.delta", delta=text, **fields)

    def _done(self) -> dict[str, Any]:
        return {"text": "".join(self._texts)}

    def _event(self, name: str, **fields: Any) -> Event:
        place = {"item_id": self._id, "output_index": self._index, "content_index": 0}
        return {"type": name, **place, **fields}


class OpenMessage(OpenText):
    def __init__(self, id: str, index: int) -> None:
        super().__init__(id, index, "output_text")
        self._logged: list[TokenLogprob] = []

    def more(self, text: str, tokens: Sequence[LoggedToken]) -> list[Event]:
        logged = shapes.logprobs(tokens)
        self._logged += logged
        return [self._delta(text, logprobs=logged)]

    def part(self) -> ItemJson:
        return {**super().part(), "annotations": [], "logprobs": list(self._logged)}

    def shape(self, status: str) -> ItemJson:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": [self.part()],
        }

    def _done(self) -> dict[str, Any]:
        return {**super()._done(), "logprobs": list(self._logged)}


class OpenReasoning(OpenText):
    """If `sealed`, its end carries the text for clients that keep nothing here."""

    def __init__(self, id: str, index: int, *, sealed: bool) -> None:
        super().__init__(id, index, "reasoning_text")
        self._sealed = sealed

    def more(self, text: str) -> list[Event]:
        return [self._delta(text)]

    def shape(self, status: str) -> ItemJson:
        part = self.part()
        ended = self._sealed and status != "in_progress"
        hidden = {"encrypted_content": seal(part["text"])} if ended else {}
        return {
            "id": self._id,
            "type": "reasoning",
            "summary": [],
            "content": [part],
            **hidden,
            "status": status,
        }


class OpenCall:
    """A call of a function."""

    def __init__(self, id: str, index: int, call_id: str, name: str) -> None:
        self._id = id
        self._index = index
        self._call_id = call_id
        self._name = name
        self._fragments: list[str] = []

    def opening(self) -> list[Event]:
        item = self.shape("in_progress")
        return [{"type": "response.output_item.added", "output_index": self._index, "item": item}]

    def more(self, fragment: str) -> list[Event]:
        self._fragments.append(fragment)
        return [self._event("response.function_call_arguments.delta", delta=fragment)]

    def closing(self, status: str) -> list[Event]:
        item = self.shape(status)
        return [
            self._event("response.function_call_arguments.done", arguments=item["arguments"]),
            {"type": "response.output_item.done", "output_index": self._index, "item": item},
        ]

    def shape(self, status: str) -> ItemJson:
        return {
            "id": self._id,
            "type": "function_call",
            "call_id": self._call_id,
            "name": self._name,
            "arguments": "".join(self._fragments),
            "status": status,
        }

    def _event(self, name: str, **fields: Any) -> Event:
        return {"type": name, "item_id": self._id, "output_index": self._index, **fields}
