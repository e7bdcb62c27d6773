"""A GGUF file in LM Studio's folders is served under its name in all APIs, and gives the answers of
the model of its values, from the cache too."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from tokenizers.decoders import ByteLevel

from tests.api.harness import UNPROBED, ServerProcess, serving
from tests.compute.oracle import greedy
from tests.gguf_models import WrittenModel, write_model
from tests.models.tiny_gguf import TOKENS

PROMPT = [5, 9, 2, 7, 1, 3, 8, 8, 4, 6, 2, 9, 30, 40, 50] * 8
NAME = "org/name:Q4_K_M"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> WrittenModel:
    folder = tmp_path_factory.mktemp("lm") / "org" / "name"
    folder.mkdir(parents=True)
    written = write_model(folder, "qwen3")
    return replace(written, file=written.file.rename(folder / "tiny-Q4_K_M.gguf"))


@pytest.fixture(scope="module")
def server(
    written: WrittenModel, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    sets = [f"models.dirs={written.file.parents[2]}", UNPROBED, "cache.block_tokens=16"]
    with serving("tiny-Q4_K_M", tmp_path_factory.mktemp("gguf"), *sets) as server:
        yield server


def test_answers_are_those_of_the_values_cold_and_warm(
    server: ServerProcess, written: WrittenModel
) -> None:
    body = {"model": NAME, "prompt": PROMPT, "max_tokens": 12, "temperature": 0}
    for cached in (0, len(PROMPT) - 1):
        answer = server.http.post(f"{server.url}/v1/completions", json={**body, "ignore_eos": True})
        assert answer.status_code == 200, answer.text
        usage, [choice] = answer.json()["usage"], answer.json()["choices"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == cached
        spelled = [TOKENS[id] for id in greedy(written.model, PROMPT, 12)]
        assert choice["text"] == ByteLevel().decode(spelled)


def test_every_api_knows_the_name(server: ServerProcess) -> None:
    names = [model["id"] for model in server.http.get(f"{server.url}/v1/models").json()["data"]]
    assert NAME in names
    for name in (NAME, "tiny-Q4_K_M", "org/name", "hf.co/org/name:q4_k_m"):
        asked = {"model": name, "messages": [{"role": "user", "content": "hell"}]}
        options = {"max_tokens": 4}
        assert server.post({**asked, **options}).status_code == 200
        message = server.http.post(f"{server.url}/v1/messages", json={**asked, **options})
        assert message.status_code == 200, message.text
        ollama = server.http.post(f"{server.url}/api/chat", json={**asked, "stream": False})
        assert ollama.status_code == 200, ollama.text
    shown = server.http.post(f"{server.url}/api/show", json={"model": NAME}).json()
    assert shown["details"]["family"] == "qwen3"
    assert shown["model_info"]["general.parameter_count"] > 10_000
