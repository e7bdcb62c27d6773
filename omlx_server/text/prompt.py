"""Turns a conversation into the token ids of a prompt. Any thread."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from omlx_server.text.dialect import Dialect
from omlx_server.text.image_marks import ImageMarks
from omlx_server.text.templates.messages import Message
from omlx_server.text.templates.template import ChatTemplate
from omlx_server.text.tool_calls.fallback import has_calls_or_results, tools_as_text


@dataclass(frozen=True, slots=True, eq=False)
class PromptRenderer:
    """A model's template with one request's tools, variables and marked images."""

    template: ChatTemplate
    dialect: Dialect
    tools: Sequence[Mapping[str, Any]]
    kwargs: Mapping[str, Any]
    images: ImageMarks | None = None

    def fitted(self, messages: Sequence[Message]) -> list[Message]:
        """Return the messages as the template can take them. Without tools in the template,
        tools and calls become plain text."""
        if not self.dialect.shows_tools and (
            self.tools or any(map(has_calls_or_results, messages))
        ):
            messages = tools_as_text(messages, self.tools)
        dialect = self.dialect
        shows_these = self.tools and dialect.shows_tools
        systems = dialect.systems_beside_tools if shows_these else dialect.systems
        return dialect.calls.fitted(systems.fitted(messages))

    def tokenize(
        self,
        fitted: Sequence[Mapping[str, Any]],
        *,
        opens: bool = True,
        goes_on: bool = False,
        most: int | None = None,
    ) -> list[int]:
        """Return at most `most` token ids. With `opens` the prompt ends where an answer begins;
        with `goes_on`, within the last message. Raises as `ChatTemplate.encode`."""
        return self.template.encode(
            fitted,
            tools=self.tools if self.dialect.shows_tools else None,
            add_generation_prompt=opens,
            continue_final_message=goes_on,
            kwargs=self.kwargs,
            most=most,
            images=self.images,
        )
