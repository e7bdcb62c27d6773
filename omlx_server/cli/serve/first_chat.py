"""Asks a server two questions, and prints the answers and their speed."""

from omlx_server.cli.shell.screen import Screen
from omlx_server.cli.talk.client import ChatClient, Message, TimedAnswer, closing_lines
from omlx_server.errors import OmlxError
from omlx_server.models.catalogue import STARTER

QUESTION = "What is the capital of France?"
FOLLOW_UP = "Name one famous building there."
# The most tokens of an answer. A model that thinks needs more to come to its answer.
_STARTER_TOKENS = 64
_MOST_TOKENS = 512
_CLEARLY_SHORTER = 0.8


def ask_twice(client: ChatClient, model: str) -> None:
    """Print two questions and their answers. Raises OmlxError if one fails or is wrong."""
    messages: list[Message] = [{"role": "user", "content": QUESTION}]
    first_answer = _ask(client, model, messages)
    if model == STARTER.name and "Paris" not in first_answer.text:
        raise OmlxError(f"the answer to {QUESTION!r} should name Paris; something is wrong")
    messages += [
        {"role": "assistant", "content": first_answer.text},
        {"role": "user", "content": FOLLOW_UP},
    ]
    second_answer = _ask(client, model, messages)
    if second_answer.cached_tokens:
        print(
            "\nThe second request repeats the first and adds a turn. "
            f"Of its {second_answer.prompt_tokens} prompt tokens {second_answer.cached_tokens} "
            f"came from the cache{_ratio_in_words(first_answer, second_answer)}."
        )


def _ratio_in_words(first_answer: TimedAnswer, second_answer: TimedAnswer) -> str:
    """Compare the waits for a first token, if the second is clearly shorter."""
    if second_answer.first_token_at > _CLEARLY_SHORTER * first_answer.first_token_at:
        return ""
    ratio = second_answer.first_token_at / first_answer.first_token_at
    return f";\nits first token took {ratio:.2f} times as long as that of the first"


def _ask(client: ChatClient, model: str, messages: list[Message]) -> TimedAnswer:
    print(f"\n> {messages[-1]['content']}", flush=True)
    limit = _STARTER_TOKENS if model == STARTER.name else _MOST_TOKENS
    with Screen() as screen:
        answer = client.ask(model, messages, screen, temperature=0, max_tokens=limit)
    if not answer.completion_tokens:
        raise OmlxError(f"{model} gave an empty answer")
    print("\n".join(closing_lines(answer)), flush=True)
    return answer
