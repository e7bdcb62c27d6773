"""Chats that fill the cache and the log of a server, as a client asks for them."""

from tests.api.harness import ADMIN_TOKEN, CHAT, Json, ServerProcess

OWNER = {"x-admin-token": ADMIN_TOKEN}
SYSTEM = "You are a helpful assistant of the quick brown fox. " * 6


def messages(text: str) -> list[Json]:
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}]


def ask(server: ServerProcess, text: str, **fields: object) -> None:
    """A question after a long system prompt."""
    body = {"model": "org/tiny", "messages": messages(text), "max_tokens": 4, **fields}
    answer = server.http.post(f"{server.url}{CHAT}", json=body, headers=OWNER)
    assert answer.status_code == 200, answer.text


def tokens(server: ServerProcess, text: str) -> list[int]:
    """The tokens of the prompt of `ask`."""
    body = {"model": "org/tiny", "messages": messages(text)}
    answer = server.http.post(f"{server.url}/tokenize", json=body, headers=OWNER)
    return [int(token) for token in answer.json()["tokens"]]


def text_of(server: ServerProcess, *tokens: int) -> str:
    body = {"model": "org/tiny", "tokens": tokens}
    answer = server.http.post(f"{server.url}/detokenize", json=body, headers=OWNER)
    return str(answer.json()["prompt"])
