"""The types of the answers of Ollama's routes. Durations are in nanoseconds, sizes in bytes, times
in RFC 3339."""

from typing import Annotated, Any, Literal, NotRequired

import orjson
from pydantic import GetPydanticSchema
from typing_extensions import TypedDict

from omlx_server.api.http.ollama_errors import OllamaError
from omlx_server.api.openai.answers import TokenLogprob

DoneReason = Literal["stop", "length", "load", "unload"]
CallArguments = Annotated[
    dict[str, Any] | orjson.Fragment,
    GetPydanticSchema(lambda _, handler: handler(dict[str, Any])),
]
"""An object, or its JSON text."""


class MadeFunction(TypedDict):
    """`index` counts the calls of an answer from 0."""

    index: int
    name: str
    arguments: CallArguments


class OllamaToolCall(TypedDict):
    id: str
    function: MadeFunction


class AnswerMessage(TypedDict):
    """Calls are whole."""

    role: Literal["assistant"]
    content: str
    thinking: NotRequired[str]
    tool_calls: NotRequired[list[OllamaToolCall]]


class Head(TypedDict):
    model: str
    created_at: str


class Counts(TypedDict):
    """`prompt_eval_count` includes cached tokens."""

    total_duration: int
    load_duration: int
    prompt_eval_count: int
    prompt_eval_duration: int
    eval_count: int
    eval_duration: int


class ChatLine(Head):
    """A part of an answer."""

    message: AnswerMessage
    done: Literal[False]
    logprobs: NotRequired[list[TokenLogprob]]


class ChatLoaded(Head):
    """A model was loaded, or may be unloaded."""

    message: AnswerMessage
    done: Literal[True]
    done_reason: DoneReason


class ChatEnd(ChatLoaded, Counts):
    """The last line of an answer, or a whole answer."""

    logprobs: NotRequired[list[TokenLogprob]]


class GenerateLine(Head):
    """A part of an answer."""

    response: str
    thinking: NotRequired[str]
    done: Literal[False]
    logprobs: NotRequired[list[TokenLogprob]]


class GenerateLoaded(Head):
    """A model was loaded, or may be unloaded."""

    response: str
    done: Literal[True]
    done_reason: DoneReason


class GenerateEnd(GenerateLoaded, Counts):
    """The last line of an answer, or a whole answer. `context` is always empty."""

    thinking: NotRequired[str]
    context: list[int]
    logprobs: NotRequired[list[TokenLogprob]]


ChatStream = ChatLine | ChatEnd | OllamaError
GenerateStream = GenerateLine | GenerateEnd | OllamaError


class Embedded(TypedDict):
    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int


class EmbeddedOne(TypedDict):
    embedding: list[float]


class ModelDetails(TypedDict):
    """`parameter_size` and `quantization_level` are empty if unknown."""

    parent_model: str
    format: Literal["mlx"]
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class TaggedModel(TypedDict):
    """`digest` covers configuration, names and sizes of files: all names of a model share it."""

    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: ModelDetails


class Tags(TypedDict):
    models: list[TaggedModel]


class RunningModel(TypedDict):
    """A loaded model. `expires_at`: when it is unloaded if unused; in centuries if never."""

    name: str
    model: str
    size: int
    size_vram: int
    digest: str
    details: ModelDetails
    expires_at: str
    context_length: int


class Running(TypedDict):
    models: list[RunningModel]


Capability = Literal["completion", "tools", "vision", "thinking", "insert", "embedding"]


class ShownModel(TypedDict):
    """`parameters`: the default sampling values, one a line. `model_info` has
    `general.architecture`, and under its value the context length and other sizes."""

    modelfile: str
    parameters: str
    template: str
    details: ModelDetails
    model_info: dict[str, str | int]
    capabilities: list[Capability]
    modified_at: str


class OllamaVersion(TypedDict):
    """The version of Ollama's API that this one follows."""

    version: str


class PullStatus(TypedDict):
    """`total` and `completed` count bytes or tensors of one step."""

    status: str
    digest: NotRequired[str]
    total: NotRequired[int]
    completed: NotRequired[int]


PullLine = PullStatus | OllamaError
