"""Usage and log-probabilities in the openai package's types."""

from collections.abc import Iterable

from omlx_server.api.chat.choices import LoggedToken, TokenCounts
from omlx_server.api.openai import answers
from omlx_server.text.answers.answer import TokenEntry


def usage(usage: TokenCounts) -> answers.OpenAiUsage:
    prompt: answers.PromptTokensDetails = {"cached_tokens": usage.cached}
    if usage.dropped:
        prompt["dropped_messages"] = usage.dropped
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
        "prompt_tokens_details": prompt,
        "completion_tokens_details": {
            "reasoning_tokens": usage.reasoning,
            "accepted_prediction_tokens": usage.accepted,
            "rejected_prediction_tokens": usage.rejected,
        },
    }


def logprobs(tokens: Iterable[LoggedToken]) -> list[answers.TokenLogprob]:
    return [
        {**_entry(token.entry), "top_logprobs": [_entry(other) for other in token.top]}
        for token in tokens
    ]


def finite(logprob: float | None) -> float | None:
    """Return a log-probability for JSON: -9999.0 for -inf, as OpenAI and vLLM do."""
    return None if logprob is None else max(logprob, -9999.0)


def _entry(entry: TokenEntry) -> answers.LikelyToken:
    return {"token": entry.text, "logprob": finite(entry.logprob), "bytes": entry.bytes}
