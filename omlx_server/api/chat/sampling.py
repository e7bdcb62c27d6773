"""The request fields for sampling and for the end of an answer."""

import secrets
from dataclasses import fields as fields_of
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, StringConstraints

from omlx_server.api.http.json_body import Choices, JsonObject, Source, StrictModel
from omlx_server.api.models.served_model import ServedModel
from omlx_server.core.request import RequestDefaults, SamplingParams, SamplingPresets
from omlx_server.core.speculation.methods import Mode
from omlx_server.errors import BadRequest
from omlx_server.text.grammar import to_grammar as grammar_fields
from omlx_server.text.grammar.to_grammar import GrammarSpec

Stop = Annotated[str, StringConstraints(min_length=1, max_length=1000)]
BadWord = Annotated[str, StringConstraints(min_length=1, max_length=256)]
PresetName = Annotated[str, StringConstraints(min_length=1)]
TokenId = Annotated[int, Field(ge=0, le=1 << 31)]
MostTokens = Annotated[int, Field(ge=-1, le=1 << 31)]
"""The most tokens of an answer. -1: as many as the context has room for, as llama.cpp has it."""
AdapterName = Annotated[str, StringConstraints(min_length=1, max_length=1024)]

_MOST_BIASES = 10_000
_SAMPLING_NUMBERS = (
    *(field.name for field in fields_of(SamplingPresets)),
    "presence_penalty",
    "frequency_penalty",
)


def default_sampling(defaults: RequestDefaults) -> dict[str, float]:
    """Return the sampling numbers among `defaults`."""
    return {name: getattr(defaults, name) for name in _SAMPLING_NUMBERS}


def _check_bias_count(biases: object) -> object:
    """Raise ValueError for too many biases; pydantic would collect an error for each."""
    if isinstance(biases, dict) and len(biases) > _MOST_BIASES:
        raise ValueError(f"at most {_MOST_BIASES} tokens can have a bias")
    return biases


class StreamOptions(StrictModel):
    include_usage: bool | None = None


class EngineFields(StrictModel):
    """The model, the adapter and the priority of a request."""

    model: Annotated[str, StringConstraints(min_length=1)]
    preset: PresetName | None = None
    adapter: AdapterName | None = None
    cache_salt: Annotated[str, StringConstraints(min_length=1, max_length=1024)] | None = None
    priority: Annotated[int, Field(ge=-1000, le=1000)] | None = None


class TokenFields(StrictModel):
    """How a token is chosen, each field with its bounds. Ollama's API has them in `options`."""

    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=1 << 31)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-(1 << 63), lt=1 << 64)] | None = None
    ignore_eos: bool | None = None


class SharedFields(EngineFields, TokenFields):
    """The fields that OpenAI's and Anthropic's requests share."""

    speculation: Mode | None = None
    stream: bool | None = None


class SamplingFields(SharedFields):
    """The fields that all requests of OpenAI's APIs share."""

    repetition_penalty: Annotated[float, Field(gt=0, le=10)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    logit_bias: (
        Annotated[
            dict[str, float], Field(max_length=_MOST_BIASES), BeforeValidator(_check_bias_count)
        ]
        | None
    ) = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=32)] | None = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=128)] | None = None
    include_stop_str_in_output: bool | None = None
    min_tokens: Annotated[int, Field(ge=0, le=1 << 31)] | None = None
    stream_options: StreamOptions | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    user: str | None = None
    bad_words: Annotated[list[BadWord], Field(max_length=256)] | None = None
    # Constraints of the answer, which text.grammar.to_grammar checks.
    response_format: JsonObject | None = None
    structured_outputs: JsonObject | None = None
    guided_json: JsonObject | Source | bool | None = None
    guided_regex: Source | None = None
    guided_choice: Choices | None = None
    guided_grammar: Source | None = None
    guided_json_object: bool | None = None
    guided_whitespace_pattern: str | None = None
    json_schema: JsonObject | bool | None = None
    grammar: Source | None = None

    def stops(self, model: ServedModel) -> tuple[str, ...]:
        if self.stop is None:
            return model.defaults.stop
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def with_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def answer_grammar(self) -> GrammarSpec | None:
        """The grammar or schema of the answer. Raises BadRequest for several that contradict."""
        names = (*grammar_fields.FIELDS, "guided_whitespace_pattern")
        return grammar_fields.from_request({name: getattr(self, name) for name in names})

    def check_stream_options(self) -> None:
        if self.stream_options is not None and not self.stream:
            raise BadRequest("stream_options needs stream to be true", param="stream_options")

    def sampling_params(
        self, model: ServedModel, *, max_tokens: int, top_logprobs: int | None
    ) -> SamplingParams:
        """Return the sampling parameters, with the model's defaults. Raises BadRequest for ids."""
        numbers: dict[str, Any] = {**default_sampling(model.defaults)}
        numbers |= self.model_dump(include=set(_SAMPLING_NUMBERS), exclude_none=True)
        numbers["top_k"] = max(0, numbers["top_k"])
        seed = model.defaults.seed if self.seed is None else self.seed
        biases = self._checked_biases(model.vocab)
        stop_ids = frozenset(() if self.ignore_eos else model.tokenizer.eos_ids)
        if any(id >= model.vocab for id in self.stop_token_ids or ()):
            raise BadRequest(f"ids must be below {model.vocab}", param="stop_token_ids")
        return SamplingParams(
            max_tokens=max_tokens,
            **numbers,
            logit_bias=biases,
            seed=secrets.randbits(63) if seed is None else seed,
            stop_ids=stop_ids.union(self.stop_token_ids or ()),
            min_tokens=self.min_tokens or 0,
            top_logprobs=top_logprobs,
        )

    def _checked_biases(self, vocab: int) -> tuple[tuple[int, float], ...]:
        biases = []
        for number, (key, bias) in enumerate((self.logit_bias or {}).items(), 1):
            if not (key.isascii() and key.isdigit() and len(key) < 10):
                problem = f"keys must be token ids below {vocab}; key {number} is no number of one"
                raise BadRequest(problem, param="logit_bias")
            param = f"logit_bias.{key}"
            if int(key) >= vocab:
                raise BadRequest(f"keys must be token ids below {vocab}", param=param)
            if not -100 <= bias <= 100:
                raise BadRequest("values must be from -100 to 100", param=param)
            biases.append((int(key), float(bias)))
        return tuple(biases)
