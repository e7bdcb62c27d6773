"""How a chat template takes the content of a message, and what it writes for an image.

    content    What is <mark of an image, a run of digits>?
    parts      [{"type": "text", "text": "What is "}, {"type": "image"}, {"type": "text", ...}]
    rendering  ...What is <image>?

A trial finds both.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from omlx_server.errors import BadRequest
from omlx_server.text.image_marks import ImageMarks
from omlx_server.text.templates import turn_forms
from omlx_server.text.templates.messages import Message
from omlx_server.text.templates.turn_forms import Render, try_render

ContentPart = dict[str, str]

_IMAGE: ContentPart = {"type": "image"}
_BEFORE, _BEHIND = "c0ffee8", "c0ffee9"


@dataclass(frozen=True, slots=True)
class ContentForm:
    """`lists`: the template takes a text only as a part in a list. `image`: what it writes for
    an image in messages of these `roles`; "" where it shows none."""

    lists: bool = False
    image: str = ""
    roles: frozenset[str] = frozenset()

    @classmethod
    def of(cls, render: Render, controls: Iterable[str]) -> "ContentForm":
        """Find the form by trial. The markup of an image must hold one of `controls`, so that a
        client can't write it."""
        if _BEFORE in try_render(render, [_user_message(_BEFORE)]):
            form = cls()
        elif _BEFORE in try_render(render, [_user_message([_text_part(_BEFORE)])]):
            form = cls(lists=True)
        else:
            return cls()
        parts = [_text_part(_BEFORE), _IMAGE, _text_part(_BEHIND)]
        image = _text_between(render, [_user_message(parts)])
        if not any(text in image for text in controls if text):
            return form
        call_turns = [form._with_list(message) for message in turn_forms.CALL_TURNS]
        result = {**turn_forms.result(0), "content": parts}
        tool_image = _text_between(render, [*call_turns, result])
        roles = frozenset(["user", "tool"] if tool_image == image else ["user"])
        return cls(form.lists, image, roles)

    def fitted(
        self, messages: Iterable[Message], images: ImageMarks | None
    ) -> tuple[list[Message], list[str]]:
        """Return the messages as the template takes them, and the marks of the images to show.
        Other marks stay texts."""
        fitted, shown = list[Message](), list[str]()
        for message in messages:
            content, pieces = message.get("content"), list[str]()
            if images is not None and message["role"] in self.roles and isinstance(content, str):
                pieces = images.split(content)  # texts and marks in turn
            if len(pieces) < 2:
                fitted.append(self._with_list(message))
                continue
            shown += pieces[1::2]
            parts = [_IMAGE if n % 2 else _text_part(piece) for n, piece in enumerate(pieces)]
            parts = [part for part in parts if part.get("text") != ""]
            fitted.append({**message, "content": parts})
        return fitted, shown

    def marked(self, rendering: str, marks: Sequence[str]) -> str:
        """Return a rendering with marks in place of images. Raises BadRequest if their numbers
        differ."""
        if not self.image:
            return rendering
        texts = rendering.split(self.image)
        if len(texts) != len(marks) + 1:
            raise BadRequest("the chat template can't show these images", param="messages")
        return "".join(piece for pair in zip(texts, [*marks, ""], strict=True) for piece in pair)

    def _with_list(self, message: Message) -> Message:
        content = message.get("content")
        if not self.lists or not isinstance(content, str):
            return message
        return {**message, "content": [_text_part(content)]}


def append_text(content: Any, text: str) -> Any:
    if not isinstance(content, list):
        return f"{content}{text}"
    if content and "text" in content[-1]:
        return [*content[:-1], {**content[-1], "text": content[-1]["text"] + text}]
    return [*content, _text_part(text)]


def _text_part(text: str) -> ContentPart:
    return {"type": "text", "text": text}


def _user_message(content: str | list[ContentPart]) -> Message:
    return {"role": "user", "content": content}


def _text_between(render: Render, messages: Sequence[Message]) -> str:
    _, _, behind = try_render(render, messages).partition(_BEFORE)
    between, marker, _ = behind.partition(_BEHIND)
    return between.strip() if marker else ""
