"""A conversation of 100,000 tokens over HTTP: of its second turn only the new part is encoded."""

from collections.abc import Iterator

import pytest

from tests.api.harness import Json, ServerProcess, samples, serving
from tests.api.small_models import save, sets

CONTEXT = 1 << 18
STORY = " ".join(f"Fact {n}: the number {n} comes before {n + 1}." for n in range(5000))
TWIN = 33
"""Characters by which a control token may be longer for the library than in the rendering."""


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    root = tmp_path_factory.mktemp("models")
    save(root / "org" / "deep", "llama", max_position_embeddings=CONTEXT)
    with serving("org/deep", tmp_path_factory.mktemp("deep"), *sets(root)) as server:
        yield server


def encoded(server: ServerProcess) -> float:
    """How many characters went to the library since the server began."""
    text = server.http.get(f"{server.url}/metrics").raise_for_status().text
    return samples(text)['omlx_text_characters_total{source="encoded"}']


def count(server: ServerProcess, messages: list[Json]) -> int:
    """The tokens of a conversation, which is rendered and encoded as for an answer."""
    body = {"model": server.model, "messages": messages}
    answer = server.http.post(f"{server.url}/v1/messages/count_tokens", json=body)
    return int(answer.raise_for_status().json()["input_tokens"])


def test_of_a_second_turn_the_new_part_is_encoded(deep: ServerProcess) -> None:
    talk: list[Json] = [{"role": "user", "content": STORY}]
    before = encoded(deep)
    first = count(deep, talk)
    assert first > 100_000
    assert encoded(deep) - before >= len(STORY)
    talk += [{"role": "assistant", "content": "Yes."}, {"role": "user", "content": "And then?"}]
    before = encoded(deep)
    assert first < count(deep, talk) < first + 60
    assert 0 < encoded(deep) - before < 60 + 6 * TWIN


def test_of_a_text_that_grows_its_end_is_encoded(deep: ServerProcess) -> None:
    """A prompt without a template, as an editor sends a file that somebody writes."""

    def ask(prompt: str) -> None:
        body = {"model": deep.model, "prompt": prompt}
        deep.http.post(f"{deep.url}/tokenize", json=body).raise_for_status()

    ask(STORY)
    before = encoded(deep)
    ask(f"{STORY} And so on.")
    assert 0 < encoded(deep) - before < 5000


def test_what_is_kept_is_on_the_account(deep: ServerProcess) -> None:
    count(deep, [{"role": "user", "content": STORY}])
    told = deep.http.get(f"{deep.url}/health").json()["memory"]["token_ids"]
    assert len(STORY) < told < 48 << 20
