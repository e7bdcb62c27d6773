"""The fields of a text completion request, and its prompts, encoded and queued."""

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Request
from pydantic import Field

from omlx_server.api.chat.choices import Choices
from omlx_server.api.chat.plan import with_bad_words
from omlx_server.api.chat.sampling import MostTokens, SamplingFields, TokenId
from omlx_server.api.chat.turn import engine_request, submit
from omlx_server.api.http.json_body import Text, refuse_unsupported
from omlx_server.api.models.served_model import ServedModel
from omlx_server.errors import BadRequest, ContextTooLong, PromptTooLong
from omlx_server.text.answers.form import AnswerForm
from omlx_server.text.dialect import FILL_IN
from omlx_server.text.tokenizer import Tokenizer

DEFAULT_MAX_TOKENS = 16
_MOST_PROMPTS = 2048
TokenIds = Annotated[list[TokenId], Field(min_length=1)]
Prompt = (
    Text
    | TokenIds
    | Annotated[list[Text], Field(min_length=1, max_length=_MOST_PROMPTS)]
    | Annotated[list[TokenIds], Field(min_length=1, max_length=_MOST_PROMPTS)]
)
UNSUPPORTED = {"prompt_logprobs": "use echo and logprobs"}


def prompts_in(prompt: Prompt) -> list[str | list[int]]:
    """Return one text, one list of token ids, or several of either as a list."""
    if isinstance(prompt, str):
        return [prompt]
    prompts = [item for item in prompt if not isinstance(item, int)]
    return prompts or [[item for item in prompt if isinstance(item, int)]]


class CompletionRequest(SamplingFields):
    """The body of POST /v1/completions."""

    prompt: Prompt
    max_tokens: MostTokens | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    best_of: Annotated[int, Field(ge=1, le=128)] | None = None
    suffix: Text | None = None
    # Refused if they have a value; see UNSUPPORTED.
    prompt_logprobs: Any = None

    @property
    def answers(self) -> int:
        """Answers that the client gets for each prompt."""
        return self.n or 1

    @property
    def candidates(self) -> int:
        """Answers that are generated for each prompt; the best are sent."""
        return self.best_of or self.answers

    def check(self) -> None:
        """Raise BadRequest for fields that are unsupported or contradict each other."""
        refuse_unsupported(self, UNSUPPORTED)
        self.check_stream_options()
        if self.candidates < self.answers:
            raise BadRequest("best_of must be at least n", param="best_of")
        if self.stream and self.candidates > self.answers:
            raise BadRequest("best_of can't be streamed", param="best_of")
        if self.max_tokens == 0 and not self.echo:
            raise BadRequest("max_tokens may be 0 with echo only", param="max_tokens")
        if self.suffix and self.echo:
            raise BadRequest("echo has no meaning with a suffix", param="echo")


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """A prompt as token ids. `text` is what `echo` repeats; `max_tokens` fits the context."""

    tokens: tuple[int, ...]
    text: str
    max_tokens: int


def encode(body: CompletionRequest, model: ServedModel) -> list[EncodedPrompt]:
    """Return the prompts as token ids; slow. Raises BadRequest and ContextTooLong."""
    return [_encode_prompt(prompt, body, model) for prompt in prompts_in(body.prompt)]


async def start(
    id: str, prompt: EncodedPrompt, body: CompletionRequest, model: ServedModel, request: Request
) -> Choices:
    """Queue a prompt. Raises BadRequest, and as `submit`."""
    # The best candidates are found by their log-probabilities.
    needs_logprobs = body.candidates > body.answers
    top = 0 if needs_logprobs and body.logprobs is None else body.logprobs
    with model.engine.preparing():
        grammar = body.answer_grammar
        constraint = None if grammar is None else await model.grammars.constraint(grammar)
        sampling = body.sampling_params(model, max_tokens=prompt.max_tokens, top_logprobs=top)
        queued = engine_request(
            id,
            prompt.tokens,
            sampling,
            body,
            model,
            request,
            n=body.candidates,
            constraint=with_bad_words(constraint, body.bad_words or (), model),
        )
        include_stop = bool(body.include_stop_str_in_output)
        form = AnswerForm(body.stops(model), include_stop, continues=True)
        return await submit(queued, form, model, request)


def _encode_prompt(
    prompt: str | list[int], body: CompletionRequest, model: ServedModel
) -> EncodedPrompt:
    if isinstance(prompt, str):
        try:
            tokens = _encode_text(prompt, body, model.tokenizer, model.context_length)
        except PromptTooLong as error:
            raise error.of_context(model.context_length) from None
    else:
        tokens = prompt
        if max(tokens) >= model.vocab:
            raise BadRequest(f"token ids must be below {model.vocab}", param="prompt")
    if not tokens:
        raise BadRequest("the prompt is empty", param="prompt")
    room = model.context_length - len(tokens)
    if room < 0 or (room == 0 and body.max_tokens != 0):
        raise ContextTooLong(model.context_length, len(tokens))
    max_tokens = body.max_tokens
    if max_tokens is None:
        max_tokens = model.defaults.max_tokens or DEFAULT_MAX_TOKENS
    if max_tokens < 0:
        max_tokens = room
    text = prompt if isinstance(prompt, str) else model.tokenizer.decode_all(tokens)
    return EncodedPrompt(tuple(tokens), text, min(max_tokens, room))


def _encode_text(
    prompt: str, body: CompletionRequest, tokenizer: Tokenizer, most: int
) -> list[int]:
    """Encode a text, with a suffix after control tokens. Raises TooManyTokens and BadRequest."""
    if not body.suffix:
        return tokenizer.encode_prompt(prompt, most)
    for names in FILL_IN:
        before, after, middle = (tokenizer.token_id(name) for name in names)
        if before is not None and after is not None and middle is not None:
            prompt_ids = tokenizer.encode(prompt, most=most)
            suffix_ids = tokenizer.encode(body.suffix, most=most)
            return [before, *prompt_ids, after, *suffix_ids, middle]
    raise BadRequest("this model has no tokens for filling in before a suffix", param="suffix")
