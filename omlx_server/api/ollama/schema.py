"""The fields of Ollama's requests. Types are strict; unknown fields and options are ignored."""

import math
import re
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from omlx_server.api.chat.request import FunctionDefinition
from omlx_server.api.chat.sampling import EngineFields, Stop, TokenFields
from omlx_server.api.http.json_body import JsonObject, StrictModel, Text
from omlx_server.errors import BadRequest

KeepAlive = (
    Annotated[float, Field(ge=-1e12, le=1e12)] | Annotated[str, StringConstraints(max_length=64)]
)
"""Seconds, or a duration such as "5m"; negative for any time."""
Images = Annotated[list[Text], Field(max_length=1000)]
"""Each as base64."""
Format = Literal["", "json"] | JsonObject
"""JSON of any form, or a JSON schema; "" for free text."""
ThinkLevel = Literal["low", "medium", "high", "max"]
_UNIT_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_NUMBER_WITH_UNIT = r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)"
_DURATION = re.compile(rf"([+-]?)((?:{_NUMBER_WITH_UNIT})+)")
_PLAIN_NUMBER = re.compile(r"[+-]?\d+(?:\.\d*)?")
_Penalty = Annotated[float, Field(ge=-2, le=2)]


class Options(TokenFields):
    """Sampling options. `num_predict`: the most tokens of the answer, without limit if not
    positive. `num_ctx` is ignored: the model's whole context is usable. `repeat_last_n` 0 switches
    the penalties off; else they cover the whole context."""

    num_ctx: Annotated[int, Field(ge=0, le=1 << 31)] | None = None
    num_predict: Annotated[int, Field(ge=-(1 << 31), le=1 << 31)] | None = None
    repeat_penalty: Annotated[float, Field(gt=0, le=10)] | None = None
    repeat_last_n: Annotated[int, Field(ge=-1, le=1 << 31)] | None = None
    presence_penalty: _Penalty | None = None
    frequency_penalty: _Penalty | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=32)] | None = None


class GivenFunction(StrictModel):
    name: str
    arguments: dict[Text, Any] | None = None


class GivenCall(StrictModel):
    """A call of an earlier turn."""

    id: str | None = None
    function: GivenFunction


class GivenMessage(StrictModel):
    """One turn. A tool's result names its tool (`tool_name`) or its call (`tool_call_id`); else it
    belongs to the first call without a result."""

    role: Literal["system", "user", "assistant", "tool"]
    content: Text | None = None
    thinking: Text | None = None
    images: Images | None = None
    tool_calls: list[GivenCall] | None = None
    tool_name: Annotated[str, Field(max_length=256)] | None = None
    tool_call_id: str | None = None


class GivenTool(StrictModel):
    """A function that the model may call."""

    type: str | None = None
    function: FunctionDefinition


class WrittenRequest(EngineFields):
    """The fields of both /api/chat and /api/generate. `truncate`: whether a conversation that is
    too long loses its oldest messages; by default `context.overflow` decides. `cache_salt` and
    `priority` are this server's own."""

    stream: bool | None = None
    format: Format | None = None
    options: Options | None = None
    keep_alive: KeepAlive | None = None
    think: bool | ThinkLevel | None = None
    truncate: bool | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None


class OllamaChatRequest(WrittenRequest):
    """The body of POST /api/chat. Without messages the model is loaded, or unloaded if `keep_alive`
    is 0."""

    messages: Annotated[list[GivenMessage], Field(max_length=10_000)] | None = None
    tools: Annotated[list[GivenTool], Field(max_length=1000)] | None = None


class GenerateRequest(WrittenRequest):
    """The body of POST /api/generate. Without a prompt the model is loaded, or unloaded if
    `keep_alive` is 0. With `raw` or `suffix` no chat template is applied."""

    prompt: Text | None = None
    suffix: Text | None = None
    system: Text | None = None
    raw: bool | None = None
    images: Images | None = None
    # Refused if they have a value; see prompt.py.
    template: Any = None
    context: Any = None


class EmbedRequest(StrictModel):
    """The body of POST /api/embed. With `truncate` false an input that is too long is refused."""

    model: Annotated[str, StringConstraints(min_length=1)]
    input: Text | Annotated[list[Text], Field(max_length=2048)]
    truncate: bool | None = None
    dimensions: Annotated[int, Field(ge=1, le=1 << 20)] | None = None
    options: Options | None = None
    keep_alive: KeepAlive | None = None


class EmbeddingsRequest(StrictModel):
    """The body of POST /api/embeddings, the older route for one text."""

    model: Annotated[str, StringConstraints(min_length=1)]
    prompt: Text | None = None
    options: Options | None = None
    keep_alive: KeepAlive | None = None


class ShowRequest(StrictModel):
    """The body of POST /api/show. `name` is the older name of `model`."""

    model: str | None = None
    name: str | None = None


class PullRequest(ShowRequest):
    """The body of POST /api/pull."""

    stream: bool | None = None


def keep_alive_seconds(keep_alive: KeepAlive | None) -> float | None:
    """Return seconds, infinity for negative ones; None for None. Raises BadRequest for a text that
    is no duration in Go's form."""
    if keep_alive is None:
        return None
    seconds = _parse_duration(keep_alive) if isinstance(keep_alive, str) else keep_alive
    return math.inf if seconds < 0 else seconds


def _parse_duration(text: str) -> float:
    if _PLAIN_NUMBER.fullmatch(text):
        return float(text)
    match = _DURATION.fullmatch(text)
    if match is None:
        raise BadRequest(
            'keep_alive must be seconds, or a duration such as "5m" or "1h30m"', param="keep_alive"
        )
    sign, parts = match[1], re.findall(_NUMBER_WITH_UNIT, match[2])
    seconds = sum(float(number) * _UNIT_SECONDS[unit] for number, unit in parts)
    return -seconds if sign == "-" else seconds
