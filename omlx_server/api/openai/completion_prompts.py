"""Turns the prompts of a text completion into token ids."""

from dataclasses import dataclass

from omlx_server.api.models.served_model import ServedModel
from omlx_server.api.openai.completion_schema import CompletionRequest, prompts_in
from omlx_server.errors import BadRequest, ContextTooLong, TooManyTokens
from omlx_server.text.fill_in import FILL_IN
from omlx_server.text.tokenizer import Tokenizer

DEFAULT_MAX_TOKENS = 16


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """One prompt as token ids. `text` is what `echo` repeats; `max_tokens` the most tokens of the
    answer, no more than the prompt leaves of the context."""

    tokens: tuple[int, ...]
    text: str
    max_tokens: int


def encode(asked: CompletionRequest, model: ServedModel) -> list[EncodedPrompt]:
    """The prompts of a request as token ids. Slow for long prompts: call it in a worker thread.
    Raises BadRequest and ContextTooLong."""
    return [_encode_one(prompt, asked, model) for prompt in prompts_in(asked.prompt)]


def _encode_one(
    prompt: str | list[int], asked: CompletionRequest, model: ServedModel
) -> EncodedPrompt:
    if isinstance(prompt, str):
        try:
            tokens = _encode_text(prompt, asked, model.tokenizer, model.context_length)
        except TooManyTokens as error:
            raise ContextTooLong(model.context_length, error.at_least) from None
    else:
        tokens = prompt
        if max(tokens) >= model.vocab:
            raise BadRequest(f"token ids must be below {model.vocab}", param="prompt")
    if not tokens:
        raise BadRequest("the prompt is empty", param="prompt")
    room = model.context_length - len(tokens)
    if room < 0 or (room == 0 and asked.max_tokens != 0):
        raise ContextTooLong(model.context_length, len(tokens))
    default = model.defaults.max_tokens or DEFAULT_MAX_TOKENS
    wanted = default if asked.max_tokens is None else asked.max_tokens
    wanted = room if wanted < 0 else wanted
    text = prompt if isinstance(prompt, str) else model.tokenizer.decode_all(tokens)
    return EncodedPrompt(tuple(tokens), text, min(wanted, room))


def _encode_text(
    prompt: str, asked: CompletionRequest, tokenizer: Tokenizer, most: int
) -> list[int]:
    """The tokens of a text, with the control tokens for a suffix if the request has one. Raises
    TooManyTokens where the text has more than `most`, and BadRequest where the model has no such
    control tokens."""
    if not asked.suffix:
        return tokenizer.encode_prompt(prompt, most)
    for names in FILL_IN:
        before, after, middle = (tokenizer.token_id(name) for name in names)
        if before is not None and after is not None and middle is not None:
            start = tokenizer.encode(prompt, most=most)
            end = tokenizer.encode(asked.suffix, most=most)
            return [before, *start, after, *end, middle]
    raise BadRequest("this model has no tokens for filling in before a suffix", param="suffix")
