"""Two real questions to a server over HTTP: what it answers, how fast, and what the second one
had from the cache."""

from omlx_server.cli.shell.screen import Screen
from omlx_server.cli.talk.chat import closing
from omlx_server.cli.talk.client import Answer, ChatClient, Message
from omlx_server.errors import OmlxError
from omlx_server.models.catalogue import STARTER

QUESTION = "What is the capital of France?"
FOLLOW_UP = "Name one famous building there."
# A model that thinks needs room to come to its answer.
_TOKENS = {STARTER.name: 64}
_MOST_TOKENS = 512


def ask_twice(client: ChatClient, model: str) -> None:
    """Raises OmlxError when nothing comes, or when the starter model, whose answer is known, says
    something else."""
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


def _compared(first: Answer, second: Answer) -> str:
    if not first.first_token_at:
        return ""
    ratio = second.first_token_at / first.first_token_at
    return f";\nits first token took {ratio:.2f} times as long as that of the first"


def _ask(client: ChatClient, model: str, messages: list[Message]) -> Answer:
    print(f"\n> {messages[-1]['content']}", flush=True)
    limit = _TOKENS.get(model, _MOST_TOKENS)
    with Screen() as screen:
        answer = client.ask(model, messages, screen, temperature=0, max_tokens=limit)
    if not answer.completion_tokens:
        raise OmlxError(f"{model} gave an empty answer")
    print("\n".join(closing(answer)), flush=True)
    return answer
