"""The lines below an answer: why it ended early, and its tokens and speed."""

from omlx_server.cli.shell.output import counted, harmless
from omlx_server.cli.talk.client import TimedAnswer


def closing(answer: TimedAnswer, advice: str = "") -> list[str]:
    """Return these lines. `advice` is for an answer that reached the length limit."""
    lines = [speed(answer)]
    if answer.finish_reason == "length":
        where = "" if answer.text else ", before it came to an answer"
        advice = f": {advice}" if advice else ""
        lines.insert(0, f"[cut at {counted(answer.completion_tokens, 'token')}{where}{advice}]")
    elif answer.finish_reason != "stop":
        lines.insert(0, f"[ended by the server: {harmless(answer.finish_reason)}]")
    return lines


def advice_on_length(answer: TimedAnswer, max_tokens: float | None) -> str:
    if max_tokens is not None and answer.completion_tokens >= max_tokens:
        return "--max-tokens raises it"
    if max_tokens is not None:
        return "the context is full"
    return "the context is full, or the server's own limit is reached, which --max-tokens overrides"


def speed(answer: TimedAnswer) -> str:
    tokens = counted(answer.completion_tokens, "token")
    if answer.reasoning_tokens:
        thoughts = counted(answer.reasoning_tokens, "token")
        tokens += f" (thought for {thoughts}, {answer.thought_seconds:.1f} s)"
    rate = answer.tokens_per_second
    figures = [
        f"first token after {answer.first_token_at:.2f} s",
        f"{rate:.1f} tok/s" if rate else "",
        tokens,
        f"{answer.cached_tokens} of {answer.prompt_tokens} prompt tokens cached",
    ]
    return f"[{', '.join(filter(None, figures))}]"
