"""Asks a server two questions, and prints the answers and their speed."""

from omlx_server.cli.shell.screen import Screen
from omlx_server.cli.talk.client import ChatClient, Message, TimedAnswer, closing
from omlx_server.errors import OmlxError
from omlx_server.models.catalogue import STARTER

QUESTION = "What is the capital of France?"
FOLLOW_UP = "Name one famous building there."
# The most tokens of an answer. A model that thinks needs room to come to its answer.
_TOKENS = {STARTER.name: 64}
_MOST_TOKENS = 512


def ask_twice(client: ChatClient, model: str) -> None:
    """Raises OmlxError if an answer fails, is empty, or does not name Paris."""
    messages: list[Message] = [{"role": "user", "content": QUESTION}]
    first = _ask(client, model, messages)
    if model == STARTER.name and "Paris" not in first.text:
        raise OmlxError(f"the answer to {QUESTION!r} should name Paris; something is wrong")
    messages += [
        {"role": "assistant", "content": first.text},
        {"role": "user", "content": FOLLOW_UP},
    ]
    second = _ask(client, model, messages)
    print(
        f"\nThe second request repeats the first and adds a turn. Of its {second.prompt_tokens} "
        f"prompt tokens {second.cached_tokens} came from the cache{_compared(first, second)}."
    )


def _compared(first: TimedAnswer, second: TimedAnswer) -> str:
    if not first.first_token_at:
        return ""
    ratio = second.first_token_at / first.first_token_at
    return f";\nits first token took {ratio:.2f} times as long as that of the first"


def _ask(client: ChatClient, model: str, messages: list[Message]) -> TimedAnswer:
    print(f"\n> {messages[-1]['content']}", flush=True)
    limit = _TOKENS.get(model, _MOST_TOKENS)
    with Screen() as screen:
        answer = client.ask(model, messages, screen, temperature=0, max_tokens=limit)
    if not answer.completion_tokens:
        raise OmlxError(f"{model} gave an empty answer")
    print("\n".join(closing(answer)), flush=True)
    return answer
