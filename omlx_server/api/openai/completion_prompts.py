"""The prompts of a text completion as token ids."""

from dataclasses import dataclass

from omlx_server.api.models.served import ServedModel
from omlx_server.api.openai.completion_schema import CompletionRequest
from omlx_server.errors import BadRequest, ContextTooLong, TooManyTokens
from omlx_server.text.tokenizer import Tokenizer

# Control texts before the prompt, the suffix and the middle, as models to fill in code know them.
_FILL_IN = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),
    ("[PREFIX]", "[SUFFIX]", "[MIDDLE]"),
)
DEFAULT_MAX_TOKENS = 16


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """`text` is what `echo` repeats."""

    tokens: tuple[int, ...]
    text: str
    max_tokens: int


def encode(asked: CompletionRequest, model: ServedModel) -> list[EncodedPrompt]:
    """Slow for long prompts: runs in a worker thread. Raises BadRequest and ContextTooLong."""
    return [_encode_one(prompt, asked, model) for prompt in _prompts(asked)]


def _prompts(asked: CompletionRequest) -> list[str | list[int]]:
    prompt = asked.prompt
    if isinstance(prompt, str):
        return [prompt]
    texts = [item for item in prompt if isinstance(item, str)]
    lists = [item for item in prompt if isinstance(item, list)]
    return [*texts, *lists] or [[item for item in prompt if isinstance(item, int)]]


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
    wanted = DEFAULT_MAX_TOKENS if asked.max_tokens is None else asked.max_tokens
    text = prompt if isinstance(prompt, str) else model.tokenizer.decode_all(tokens)
    return EncodedPrompt(tuple(tokens), text, min(wanted, room))


def _encode_text(
    prompt: str, asked: CompletionRequest, tokenizer: Tokenizer, most: int
) -> list[int]:
    """Raises TooManyTokens where it is certain that there are more than `most`."""
    if not asked.suffix:
        return tokenizer.encode_prompt(prompt, most)
    for names in _FILL_IN:
        before, after, middle = (tokenizer.token_id(name) for name in names)
        if before is not None and after is not None and middle is not None:
            start = tokenizer.encode(prompt, most=most)
            end = tokenizer.encode(asked.suffix, most=most)
            return [before, *start, after, *end, middle]
    raise BadRequest("this model has no tokens for filling in before a suffix", param="suffix")
