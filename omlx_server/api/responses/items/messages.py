"""Turns the items of a conversation into the messages of a chat. Pure.

Reasoning, text and calls of one assistant turn are separate items, but one chat message. A second
assistant message starts a new turn, unless calls stand between the two. Contents with images become
lists of parts, others one text.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from omlx_server.api.chat.tools import arguments_of
from omlx_server.api.responses import answers
from omlx_server.api.responses.items.seals import summary_text, unseal_reasoning
from omlx_server.api.responses.tool_names import ToolNames

Message = dict[str, Any]
Content = str | list[dict[str, Any]]


def chat_messages(
    instructions: str | None, items: Iterable[answers.InputItem], names: ToolNames
) -> list[Message]:
    builder = _ChatBuilder(names)
    if instructions:
        builder.add_message({"role": "system", "content": instructions})
    for item in items:
        builder.add_item(item)
    builder.end_turn()
    return builder.messages


def image_chars(items: Iterable[answers.InputItem]) -> int:
    # Images are no text to tokenize, however long their URLs are.
    contents: list[Any] = []
    for item in items:
        if item["type"] == "message":
            contents.append(item["content"])
        elif item["type"] in ("function_call_output", "custom_tool_call_output"):
            contents.append(item.get("output"))
    parts = [part for content in contents if isinstance(content, list) for part in content]
    return sum(len(part["image_url"]) for part in parts if part["type"] == "input_image")


class _ChatBuilder:
    """Collects messages; `_turn` is the assistant's latest while it may grow. Reasoning waits for
    the assistant's next message or call; it is dropped if somebody else speaks first."""

    def __init__(self, names: ToolNames) -> None:
        self._names = names
        self.messages: list[Message] = []
        self._turn: Message | None = None
        self._turn_texts: list[str] = []
        self._turn_reasoning: list[str] = []
        self._waiting_reasoning: list[str] = []

    def add_item(self, item: answers.InputItem) -> None:
        match item["type"]:
            case "message" if item["role"] == "assistant":
                self._add_answer_text(_joined_text(item["content"]))
            case "message":
                self.add_message({"role": item["role"], "content": _chat_content(item["content"])})
            case "function_call":
                self._add_call(item, item["arguments"])
            case "custom_tool_call":
                self._add_call(item, arguments_of(item["input"]))
            case "reasoning":
                self._waiting_reasoning.append(
                    _joined_text(item["content"])
                    or unseal_reasoning(item.get("encrypted_content", ""))
                    or _joined_text(item["summary"])
                )
            case "compaction":
                self._add_summary(summary_text(item["encrypted_content"]))
            case _:
                content = _chat_content(item["output"])
                result = {"role": "tool", "tool_call_id": item["call_id"], "content": content}
                self.add_message(result)

    def add_message(self, message: Message) -> None:
        """Add a message that is not the assistant's; it ends the assistant's turn."""
        self.end_turn()
        self.messages.append(message)
        self._waiting_reasoning = []

    def end_turn(self) -> None:
        """Join the turn's texts and reasoning into its message."""
        if self._turn is not None:
            self._turn["content"] = "".join(self._turn_texts)
            if self._turn_reasoning:
                self._turn["reasoning_content"] = "\n".join(self._turn_reasoning)
        self._turn, self._turn_texts, self._turn_reasoning = None, [], []

    def _add_summary(self, summary: str) -> None:
        """Add a summary as the assistant's answer to one message that joins the user messages
        before it: many templates want alternating roles."""
        self.end_turn()
        contents = []
        while self.messages and self.messages[-1]["role"] == "user":
            contents.append(self.messages.pop()["content"])
        if contents:
            self.add_message({"role": "user", "content": join_contents(reversed(contents))})
        self.add_message({"role": "assistant", "content": summary})

    def _add_answer_text(self, text: str) -> None:
        # A turn with calls takes the text that follows them.
        if self._turn is None or not self._turn.get("tool_calls"):
            self._begin_turn()
        self._take_reasoning_into_turn()
        self._turn_texts.append(text)

    def _add_call(
        self, item: answers.FunctionCallOfResponse | answers.CustomCallOfResponse, arguments: str
    ) -> None:
        turn = self._turn or self._begin_turn()
        self._take_reasoning_into_turn()
        name = self._names.shown_name(item["name"], item.get("namespace"))
        function = {"name": name, "arguments": arguments}
        calls = turn.setdefault("tool_calls", [])
        calls.append({"id": item["call_id"], "type": "function", "function": function})

    def _begin_turn(self) -> Message:
        self.end_turn()
        self._turn = {"role": "assistant", "content": ""}
        self.messages.append(self._turn)
        return self._turn

    def _take_reasoning_into_turn(self) -> None:
        self._turn_reasoning += filter(None, self._waiting_reasoning)
        self._waiting_reasoning = []


def join_contents(contents: Iterable[Content]) -> Content:
    """Join contents, with an empty line between two of them."""
    joined: Content | None = None
    for content in contents:
        if joined is None:
            joined = content
        elif isinstance(joined, str) and isinstance(content, str):
            joined = f"{joined}\n\n{content}"
        else:
            joined = [*_as_parts(joined), _text_part("\n\n"), *_as_parts(content)]
    return "" if joined is None else joined


def _as_parts(content: Content) -> list[dict[str, Any]]:
    if isinstance(content, list):
        return content
    return [_text_part(content)] if content else []


def _chat_content(content: str | Sequence[answers.MessagePart]) -> Content:
    if isinstance(content, str):
        return content
    parts = [_chat_part(part) for part in content]
    if any(part["type"] != "text" for part in parts):
        return parts
    return "".join(part["text"] for part in parts)


def _chat_part(part: answers.MessagePart) -> dict[str, Any]:
    if part["type"] != "input_image":
        return _text_part(part["text"])
    image = {"url": part["image_url"], "detail": part["detail"]}
    return {"type": "image_url", "image_url": image}


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _joined_text(
    content: Sequence[answers.MessagePart | answers.SummaryText | answers.ReasoningText],
) -> str:
    return "".join(part["text"] for part in content if part["type"] != "input_image")
