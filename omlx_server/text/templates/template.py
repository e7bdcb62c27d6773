"""A model's chat template, which turns messages into the token ids of a prompt. Any worker thread.

Invariants: a client's text never becomes a control token; other input gives the ids of
transformers' `apply_chat_template`; time and size of a rendering are bounded.
"""

import json
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any, TypedDict, Unpack

from jinja2 import Template, TemplateError, UndefinedError, meta

from omlx_server.core.model_files.template_kwargs import ALLOWED_KWARGS
from omlx_server.errors import BadRequest, ModelUnavailable, NoChatTemplate, PromptTooLong
from omlx_server.text.coded_templates import deepseek_v32
from omlx_server.text.encoding import searching
from omlx_server.text.encoding.controls import pattern_of, random_digits
from omlx_server.text.image_marks import ImageMarks
from omlx_server.text.templates.content import ContentForm, append_text
from omlx_server.text.templates.messages import (
    Message,
    as_object,
    as_text,
    with_arguments,
    with_reasoning,
)
from omlx_server.text.templates.sandbox import RenderingTooLong, Sandbox
from omlx_server.text.tokenizer import Tokenizer

_SYMBOL = re.compile(r"[^\w\s]")
_MAX_KWARG_CHARS = 64
_MAX_REASON_CHARS = 200

# What a template raises where messages or tools lack a part that it reads, and what else it can
# raise when messages are not as it expects.
_MISSING_PARTS = (UndefinedError, TypeError, LookupError, AttributeError, RecursionError)
_REFUSALS = (*_MISSING_PARTS, TemplateError, ValueError, ArithmeticError, AssertionError)


class ControlTexts:
    """The texts that a shield looks for. Immutable, made once per tokenizer."""

    def __init__(self, texts: Iterable[str]) -> None:
        control_texts = [text for text in texts if text]
        self.pattern = pattern_of(control_texts)
        beginnings = {text[:cut] for text in control_texts for cut in range(1, len(text))}
        endings = {text[cut:] for text in control_texts for cut in range(1, len(text))}
        # A fragment of letters alone is an ordinary word, which templates compare with.
        self._beginnings = {fragment for fragment in beginnings if _SYMBOL.search(fragment)}
        self._endings = {fragment for fragment in endings if _SYMBOL.search(fragment)}
        self._first_chars = {text[0] for text in control_texts}
        self._last_chars = {text[-1] for text in control_texts}
        self.longest = max(map(len, control_texts), default=0)

    def leading(self, text: str) -> int:
        """Return the length of the longest start of `text` that could end a control text."""
        for length in range(min(self.longest, len(text)), 0, -1):
            if text[length - 1] in self._last_chars and text[:length] in self._endings:
                return length
        return 0

    def trailing(self, text: str) -> int:
        """Return the length of the longest end of `text` that could begin a control text."""
        for length in range(min(self.longest, len(text)), 0, -1):
            if text[-length] in self._first_chars and text[-length:] in self._beginnings:
                return length
        return 0


class Shield:
    """The hidden texts of one rendering."""

    def __init__(self, controls: ControlTexts) -> None:
        self._controls = controls
        self._nonce = random_digits()
        self._digits_of: dict[str, str] = {}
        self._texts: list[str] = []

    def cover(self, text: str) -> str:
        """Hide control texts, and what the text begins or ends with that others could complete."""
        text = searching.replace_all(
            self._controls.pattern,
            lambda match: self._hide(match[0]),
            text,
            reach=self._controls.longest,
        )
        core = text.strip()
        if not core:
            return text
        before, _, behind = text.partition(core)
        start = self._controls.leading(core)
        end = len(core) - self._controls.trailing(core[start:])
        head, tail = self._hide(core[:start]), self._hide(core[end:])
        return f"{before}{head}{core[start:end]}{tail}{behind}"

    def restore(self, rendering: str) -> str:
        if not self._texts:
            return rendering
        hidden = re.compile(rf"{self._nonce}(\d{{6}})")
        length = len(self._nonce) + 6
        return searching.replace_all(
            hidden, lambda match: self._texts[int(match[1])], rendering, reach=length
        )

    def _hide(self, text: str) -> str:
        if not text:
            return ""
        if text not in self._digits_of:
            self._digits_of[text] = f"{self._nonce}{len(self._texts):06d}"
            self._texts.append(text)
        return self._digits_of[text]


def shielded_copy(value: Any, shield: Shield) -> Any:
    """Return a copy of a JSON value in plain types, with control texts hidden. Raises TypeError
    for anything else."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return shield.cover(str.__str__(value))
    if isinstance(value, dict):
        pairs = value.items()
        return {shielded_copy(key, shield): shielded_copy(item, shield) for key, item in pairs}
    if isinstance(value, list | tuple):
        return [shielded_copy(item, shield) for item in value]
    raise TypeError(f"not a JSON value: {type(value).__name__}")


def complete_tools(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the tools with a description, parameters and properties, and one word for the type
    of each property."""
    return [_complete_tool(tool) for tool in tools]


def _complete_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    function = tool["function"]
    parameters = function.get("parameters") or {}
    properties = parameters.get("properties")
    if not isinstance(properties, Mapping):
        properties = {}
    completed = {name: _complete_property(schema) for name, schema in properties.items()}
    parameters = {"type": "object", **parameters, "properties": completed}
    described = {"description": function.get("description") or "", "parameters": parameters}
    return {**tool, "function": {**function, **described}}


def _complete_property(schema: Any) -> dict[str, Any]:
    fields = dict(schema) if isinstance(schema, Mapping) else {}
    kinds = fields.get("type")
    if isinstance(kinds, list):
        types = [kind for kind in kinds if kind != "null"]
        fields["type"] = types[0] if types else "null"
    return {"description": "", **fields}


class TemplateOptions(TypedDict, total=False):
    """Options of a request besides its messages, under the names of transformers."""

    tools: Sequence[Mapping[str, Any]] | None
    add_generation_prompt: bool
    continue_final_message: bool
    kwargs: Mapping[str, Any] | None


class ChatTemplate:
    """`variables`: all names that the template reads; with "tools" it can show tools. Raises
    ModelUnavailable for a faulty template."""

    def __init__(
        self, tokenizer: Tokenizer, *, max_chars: int = 4_000_000, seconds: float = 10.0
    ) -> None:
        self._tokenizer = tokenizer
        self._controls = ControlTexts(tokenizer.special_texts)
        self._sandbox = Sandbox(max_chars=max_chars, seconds=seconds)
        self._sandbox.globals["deepseek_v32"] = deepseek_v32
        sources = tokenizer.chat_templates
        self._templates = {name: self._compile(source) for name, source in sources.items()}
        self.variables = frozenset(
            name
            for source in sources.values()
            for name in meta.find_undeclared_variables(self._sandbox.parse(source))
        )

    def encode(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        most: int | None = None,
        images: ImageMarks | None = None,
        **options: Unpack[TemplateOptions],
    ) -> list[int]:
        """Return the token ids of a prompt. Raises BadRequest where the template refuses the
        messages, PromptTooLong for more than `most` tokens or too many characters."""
        shield = Shield(self._controls)
        rendering = self._render(messages, shield, self._content_form, images, **options)

        def encode(text: str, most: int | None) -> list[int]:
            return self._tokenizer.encode_rendered(text, shield.restore, most)

        return images.encode(rendering, encode, most) if images else encode(rendering, most)

    def render(
        self, messages: Sequence[Mapping[str, Any]], **options: Unpack[TemplateOptions]
    ) -> str:
        """Return the prompt as text for people: control texts of any origin look alike."""
        return self._render(messages, Shield(ControlTexts(())), self._content_form, **options)

    @cached_property
    def _content_form(self) -> ContentForm:
        def render(messages: Sequence[Mapping[str, Any]]) -> str:
            return self._render(messages, Shield(ControlTexts(())), ContentForm())

        return ContentForm.of(render, self._tokenizer.special_texts)

    def _render(
        self,
        messages: Sequence[Mapping[str, Any]],
        shield: Shield,
        form: ContentForm,
        images: ImageMarks | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        template = self._template_for(tools)
        if not messages:
            raise BadRequest("messages must not be empty", param="messages")
        if continue_final_message and add_generation_prompt:
            raise BadRequest(
                "continue_final_message needs add_generation_prompt to be false",
                param="continue_final_message",
            )
        kwargs = kwargs or {}
        _check_kwargs(kwargs)
        fitted_messages, marks = form.fitted(map(with_reasoning, messages), images)
        variables = {
            **self._tokenizer.template_variables,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            **{name: shielded_copy(value, shield) for name, value in kwargs.items()},
        }
        try:
            rendering = self._render_first_form(
                template, variables, fitted_messages, tools, continue_final_message, shield
            )
        except RenderingTooLong as error:
            raise PromptTooLong(str(error), param="messages") from error
        except _REFUSALS as error:
            problem = f"the chat template refused these messages{_readable_reason(error)}"
            raise BadRequest(problem, param="messages") from error
        return form.marked(rendering, marks) if images else rendering

    def _render_first_form(
        self,
        template: Template,
        variables: dict[str, Any],
        fitted_messages: list[Message],
        tools: Sequence[Mapping[str, Any]] | None,
        continue_final_message: bool,
        shield: Shield,
    ) -> str:
        """Render the first form that the template takes. Raises the first error where all fail."""
        first_error: Exception | None = None
        for messages, shown_tools in _possible_forms(fitted_messages, tools):
            all_variables = {
                **variables,
                **self._firefunction_variables(shown_tools or (), shield),
                "messages": shielded_copy(messages, shield),
                "tools": None if shown_tools is None else shielded_copy(list(shown_tools), shield),
            }
            try:
                return self._render_form(template, all_variables, continue_final_message)
            except _MISSING_PARTS as error:
                first_error = first_error or error
        assert first_error is not None
        raise first_error

    def _firefunction_variables(
        self, tools: Sequence[Mapping[str, Any]], shield: Shield
    ) -> Mapping[str, str]:
        if "functions" not in self.variables:
            return {}
        functions = shielded_copy([tool.get("function") for tool in tools], shield)
        day = datetime.now().strftime("%B %d %Y")
        return {"functions": json.dumps(functions, indent=4), "datetime": day}

    def _render_form(
        self, template: Template, variables: Mapping[str, Any], continue_final_message: bool
    ) -> str:
        if not continue_final_message:
            return self._sandbox.render(template, variables)
        mark = f"{secrets.randbits(80):024d}"
        messages: list[Message] = variables["messages"]
        final = messages[-1]
        # The space shows whether the template trims: then the end of the rendering is trimmed too.
        marked = [*messages[:-1], {**final, "content": append_text(final["content"], f"{mark} ")}]
        rendering = self._sandbox.render(template, {**variables, "messages": marked})
        before, marker, after = rendering.rpartition(mark)
        if not marker:
            raise ValueError("the final message does not show in the prompt")
        return before if after.startswith(" ") else before.rstrip()

    def _template_for(self, tools: Sequence[Mapping[str, Any]] | None) -> Template:
        name = "tool_use" if tools and "tool_use" in self._templates else "default"
        template = self._templates.get(name)
        if template is None:
            raise NoChatTemplate("this model has no chat template", param="messages")
        return template

    def _compile(self, source: str) -> Template:
        try:
            return self._sandbox.from_string(source)
        except TemplateError as error:
            raise ModelUnavailable(f"the model's chat template is faulty: {error}") from error


def _possible_forms(
    messages: list[Message], tools: Sequence[Mapping[str, Any]] | None
) -> Iterator[tuple[list[Message], Sequence[Mapping[str, Any]] | None]]:
    """Yield the forms that templates want: arguments as text, or tools with all their parts."""
    with_objects = [with_arguments(message, as_object) for message in messages]
    with_texts = [with_arguments(message, as_text) for message in messages]
    forms = [with_objects] if with_objects == with_texts else [with_objects, with_texts]
    for form in forms:
        yield form, tools or None
    full_tools = complete_tools(tools or ())
    for form in forms:
        yield form, full_tools


def _readable_reason(error: Exception) -> str:
    """Return what the template or its sandbox says. Other errors could repeat a message's text."""
    is_readable = isinstance(error, TemplateError | RecursionError | OverflowError)
    quotes = isinstance(error, UndefinedError)
    return f": {str(error)[:_MAX_REASON_CHARS]}" if is_readable and not quotes else ""


def _check_kwargs(kwargs: Mapping[str, Any]) -> None:
    for name, value in kwargs.items():
        if name not in ALLOWED_KWARGS:
            allowed = ", ".join(sorted(ALLOWED_KWARGS))
            raise BadRequest(
                f"chat_template_kwargs may hold only: {allowed}", param="chat_template_kwargs"
            )
        fits = isinstance(value, bool | int | float) or (
            isinstance(value, str) and len(value) <= _MAX_KWARG_CHARS
        )
        if not fits:
            raise BadRequest(
                f"chat_template_kwargs: {name} must be a boolean, a number or a short string",
                param="chat_template_kwargs",
            )
