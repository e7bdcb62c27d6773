"""Turns the items of a conversation into the messages of a chat. Pure.

Reasoning, text and calls of one assistant turn are separate items, but one chat message. A second
assistant message starts a new turn, unless calls stand between the two. Contents with images become
lists of parts, others one text.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from omlx_server.api.chat.tools import arguments_of
from omlx_server.api.responses import answers
from omlx_server.api.responses.items.seals import text_of, unseal_reasoning
from omlx_server.api.responses.tool_names import ToolNames

Message = dict[str, Any]
Content = str | list[dict[str, Any]]


def chat_messages(
    instructions: str | None, items: Iterable[answers.InputItem], names: ToolNames
) -> list[Message]:
    thread = _Thread(names)
    if instructions:
        thread.say({"role": "system", "content": instructions})
    for item in items:
        thread.add(item)
    thread.end_turn()
    return thread.messages


def image_chars(items: Iterable[answers.InputItem]) -> int:
    contents: list[Any] = []
    for item in items:
        if item["type"] == "message":
            contents.append(item["content"])
        elif item["type"] in ("function_call_output", "custom_tool_call_output"):
            contents.append(item.get("output"))
    parts = [part for content in contents if isinstance(content, list) for part in content]
    return sum(len(part["image_url"]) for part in parts if part["type"] == "input_image")


class _Thread:
    """Collects messages. Reasoning joins the assistant's next message or call; it is dropped if
    somebody else speaks first."""

    def __init__(self, names: ToolNames) -> None:
        self._names = names
        self.messages: list[Message] = []
        self._turn: Message | None = None
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self._reasoning: list[str] = []

    def add(self, item: answers.InputItem) -> None:
        match item["type"]:
            case "message" if item["role"] == "assistant":
                self._answer(_text(item["content"]))
            case "message":
                self.say({"role": item["role"], "content": _content(item["content"])})
            case "function_call":
                self._call(item, item["arguments"])
            case "custom_tool_call":
                self._call(item, arguments_of(item["input"]))
            case "reasoning":
                self._reasoning.append(
                    _text(item["content"])
                    or unseal_reasoning(item.get("encrypted_content", ""))
                    or _text(item["summary"])
                )
            case "compaction":
                self._sum_up(text_of(item["encrypted_content"]))
            case _:
                content = _content(item["output"])
                self.say({"role": "tool", "tool_call_id": item["call_id"], "content": content})

    def say(self, message: Message) -> None:
        """Add a message that is not the assistant's; it ends the assistant's turn."""
        self.end_turn()
        self.messages.append(message)
        self._reasoning = []

    def end_turn(self) -> None:
        """Join the turn's texts and reasoning into its message."""
        if self._turn is not None:
            self._turn["content"] = "".join(self._texts)
            if self._thoughts:
                self._turn["reasoning_content"] = "\n".join(self._thoughts)
        self._turn, self._texts, self._thoughts = None, [], []

    def _sum_up(self, summary: str) -> None:
        """Add a summary as the assistant's answer to one message that joins the user messages
        before it: many templates want alternating roles."""
        self.end_turn()
        contents = []
        while self.messages and self.messages[-1]["role"] == "user":
            contents.append(self.messages.pop()["content"])
        if contents:
            self.say({"role": "user", "content": with_gaps(reversed(contents))})
        self.say({"role": "assistant", "content": summary})

    def _answer(self, text: str) -> None:
        turn = self._turn
        if turn is None or not turn.get("tool_calls"):
            self._new_turn()
        self._think()
        self._texts.append(text)

    def _call(
        self, item: answers.FunctionCallOfResponse | answers.CustomCallOfResponse, arguments: str
    ) -> None:
        turn = self._turn or self._new_turn()
        self._think()
        name = self._names.shown(item["name"], item.get("namespace"))
        function = {"name": name, "arguments": arguments}
        calls = turn.setdefault("tool_calls", [])
        calls.append({"id": item["call_id"], "type": "function", "function": function})

    def _new_turn(self) -> Message:
        self.end_turn()
        self._turn = {"role": "assistant", "content": ""}
        self.messages.append(self._turn)
        return self._turn

    def _think(self) -> None:
        self._thoughts += filter(None, self._reasoning)
        self._reasoning = []


def with_gaps(contents: Iterable[Content]) -> Content:
    """Join contents, with an empty line between two of them."""
    joined: Content = ""
    for number, content in enumerate(contents):
        if isinstance(joined, str) and isinstance(content, str):
            joined = f"{joined}\n\n{content}" if number else content
        else:
            gap = [_text_part("\n\n")] if number else []
            joined = [*_parts(joined), *gap, *_parts(content)]
    return joined


def _parts(content: Content) -> list[dict[str, Any]]:
    if isinstance(content, list):
        return content
    return [_text_part(content)] if content else []


def _content(
    content: str | Sequence[answers.InputText | answers.InputImage | answers.OutputText],
) -> Content:
    if isinstance(content, str):
        return content
    parts = [_part(part) for part in content]
    if any(part["type"] != "text" for part in parts):
        return parts
    return "".join(part["text"] for part in parts)


def _part(part: answers.InputText | answers.InputImage | answers.OutputText) -> dict[str, Any]:
    if part["type"] != "input_image":
        return _text_part(part["text"])
    image = {"url": part["image_url"], "detail": part["detail"]}
    return {"type": "image_url", "image_url": image}


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _text(
    content: Sequence[
        answers.InputText
        | answers.InputImage
        | answers.OutputText
        | answers.SummaryText
        | answers.ReasoningText
    ],
) -> str:
    return "".join(part["text"] for part in content if part["type"] != "input_image")
