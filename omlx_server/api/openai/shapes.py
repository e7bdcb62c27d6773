"""Usage and log-probabilities in the openai package's types."""

from collections.abc import Iterable

from omlx_server.api.chat.choices import LoggedToken, TokenCounts
from omlx_server.api.openai import answers
from omlx_server.text.answers.answer import TokenEntry


def usage(counts: TokenCounts) -> answers.OpenAiUsage:
    prompt_details: answers.PromptTokensDetails = {"cached_tokens": counts.cached}
    if counts.dropped:
        prompt_details["dropped_messages"] = counts.dropped
    return {
        "prompt_tokens": counts.prompt,
        "completion_tokens": counts.completion,
        "total_tokens": counts.prompt + counts.completion,
        "prompt_tokens_details": prompt_details,
        "completion_tokens_details": {
            "reasoning_tokens": counts.reasoning,
            "accepted_prediction_tokens": counts.accepted,
            "rejected_prediction_tokens": counts.rejected,
        },
    }


def logprobs(tokens: Iterable[LoggedToken]) -> list[answers.TokenLogprob]:
    return [
        {**_likely_token(token.entry), "top_logprobs": [_likely_token(top) for top in token.top]}
        for token in tokens
    ]


def finite(logprob: float | None) -> float | None:
    """Return a log-probability for JSON: -9999.0 for -inf, as OpenAI and vLLM do."""
    return None if logprob is None else max(logprob, -9999.0)


def _likely_token(entry: TokenEntry) -> answers.LikelyToken:
    return {"token": entry.text, "logprob": finite(entry.logprob), "bytes": entry.bytes}
