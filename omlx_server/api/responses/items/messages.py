"""Turns the items of a conversation into the messages of a chat. Pure.

Here the reasoning, the text and the calls of one assistant turn are items of their own; in a chat
they are one message. A second assistant message in a row starts a new turn, unless calls stand
between the two. A content with images becomes a list of parts; all other contents become one text.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from omlx_server.api.chat.custom_tools import arguments_of
from omlx_server.api.responses import answers
from omlx_server.api.responses.items.seals import text_of, unseal_reasoning
from omlx_server.api.responses.tool_names import ToolNames

Message = dict[str, Any]
Content = str | list[dict[str, Any]]


def chat_messages(
    instructions: str | None, items: Iterable[answers.InputItem], names: ToolNames
) -> list[Message]:
    """The messages for `items`, after a system message with the instructions if there are any."""
    thread = _Thread(names)
    if instructions:
        thread.say({"role": "system", "content": instructions})
    for item in items:
        thread.add(item)
    thread.end_turn()
    return thread.messages


def image_chars(items: Iterable[answers.InputItem]) -> int:
    """How many characters of a conversation are images."""
    contents: list[Any] = []
    for item in items:
        if item["type"] == "message":
            contents.append(item["content"])
        elif item["type"] in ("function_call_output", "custom_tool_call_output"):
            contents.append(item.get("output"))
    parts = [part for content in contents if isinstance(content, list) for part in content]
    return sum(len(part["image_url"]) for part in parts if part["type"] == "input_image")


class _Thread:
    """Collects the messages of a conversation. A reasoning item waits for the assistant's message
    or call that follows it; if somebody else speaks first, it is left out."""

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
                self._reasoning.append(_reasoning_text(item))
            case "compaction":
                self._sum_up(text_of(item["encrypted_content"]))
            case _:
                content = _content(item["output"])
                self.say({"role": "tool", "tool_call_id": item["call_id"], "content": content})

    def say(self, message: Message) -> None:
        """Add a message of somebody else than the assistant; it ends the assistant's turn."""
        self.end_turn()
        self.messages.append(message)
        self._reasoning = []

    def end_turn(self) -> None:
        """End the assistant's turn: join its texts and its reasoning into one message."""
        if self._turn is not None:
            self._turn["content"] = "".join(self._texts)
            if self._thoughts:
                self._turn["reasoning_content"] = "\n".join(self._thoughts)
        self._turn, self._texts, self._thoughts = None, [], []

    def _sum_up(self, summary: str) -> None:
        """Add a summary as the assistant's answer to the user messages before it. Those are joined
        to one message, as many templates want the roles to alternate."""
        self.end_turn()
        said = []
        while self.messages and self.messages[-1]["role"] == "user":
            said.append(self.messages.pop()["content"])
        if said:
            self.say({"role": "user", "content": with_gaps(reversed(said))})
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
    """Several contents as one, with an empty line between two of them."""
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
    given: str | Sequence[answers.InputText | answers.InputImage | answers.OutputText],
) -> Content:
    """The content of a chat's message for that of an item."""
    if isinstance(given, str):
        return given
    parts = [_part(part) for part in given]
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


def _reasoning_text(item: answers.ReasoningOfResponse) -> str:
    """The text of a reasoning item: its content, else its sealed text, else its summary."""
    sealed = item.get("encrypted_content", "")
    return _text(item["content"]) or unseal_reasoning(sealed) or _text(item["summary"])
