"""The lines below an answer: why it ended early, if it did, and its tokens and speed."""

from omlx_server.cli.shell.output import harmless
from omlx_server.cli.talk.client import Answer


def closing(answer: Answer, advice: str = "") -> list[str]:
    """Why an answer ended early, if it did, and its speed. `advice` is added if the length limit
    ended it."""
    lines = [speed(answer)]
    if answer.finish_reason == "length":
        where = "" if answer.text else ", before it came to an answer"
        advice = f": {advice}" if advice else ""
        lines.insert(0, f"[cut at {answer.completion_tokens} tokens{where}{advice}]")
    elif answer.finish_reason != "stop":
        lines.insert(0, f"[ended by the server: {harmless(answer.finish_reason)}]")
    return lines


def advice_on_length(answer: Answer, max_tokens: float | None) -> str:
    """Why an answer was cut, or what helps; the request allowed `max_tokens`, or None."""
    if max_tokens is not None and answer.completion_tokens >= max_tokens:
        return "--max-tokens raises it"
    if max_tokens is not None:
        return "the context is full"
    return "the context is full, or the server's own limit is reached, which --max-tokens overrides"


def speed(answer: Answer) -> str:
    tokens = f"{answer.completion_tokens} tokens"
    if answer.reasoning_tokens:
        seconds = f"{answer.thought_seconds:.1f} s"
        tokens += f" (thought for {answer.reasoning_tokens} tokens, {seconds})"
    return (
        f"[first token after {answer.first_token_at:.2f} s, "
        f"{answer.tokens_per_second:.1f} tok/s, {tokens}, "
        f"{answer.cached_tokens} of {answer.prompt_tokens} prompt tokens cached]"
    )
