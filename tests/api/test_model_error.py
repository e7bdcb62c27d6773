"""A model that computes NaN for some prompts: each API has an error of its own, others go on."""

from collections.abc import Iterator
from pathlib import Path

import mlx.core as mx
import pytest

from omlx_server.text.tokenizer import Tokenizer
from tests.api.harness import Json, ServerProcess, assert_envelope, serving, text_of
from tests.api.small_models import save, sets

BAD = "~"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    root = tmp_path_factory.mktemp("nan")
    _spoil(save(root / "org" / "nan", "llama", tie_word_embeddings=False))
    with serving("org/nan", tmp_path_factory.mktemp("server"), *sets(root)) as server:
        yield server


def _spoil(path: Path) -> None:
    """Make the embedding of a character NaN."""
    [token] = Tokenizer.load(path).encode(BAD)
    weights = mx.load(str(path / "model.safetensors"))
    assert isinstance(weights, dict)
    name = "model.embed_tokens.weight"
    rows = mx.arange(weights[name].shape[0])[:, None]
    weights[name] = mx.where(rows == token, mx.nan, weights[name])
    mx.save_safetensors(str(path / "model.safetensors"), weights, {"format": "mlx"})


def asked(server: ServerProcess, text: str, **fields: object) -> Json:
    return server.body(text, max_tokens=4, ignore_eos=True, **fields)


def test_its_answer_is_an_error(server: ServerProcess) -> None:
    right = text_of(server.chat("Hello", max_tokens=4, ignore_eos=True))
    for _ in range(2):
        error = assert_envelope(server.post(asked(server, f"Hello {BAD}")), 500)
        assert error["code"] == "model_error" and "not finite" in error["message"]
    assert text_of(server.chat("Hello", max_tokens=4, ignore_eos=True)) == right
    assert server.http.get(f"{server.url}/health").status_code == 200


def test_a_stream_ends_with_the_error(server: ServerProcess) -> None:
    reply = server.post(asked(server, f"Hello {BAD}", stream=True))
    events = [line for line in reply.text.splitlines() if line.startswith("data: {")]
    assert '"model_error"' in reply.text and '"content":"!' not in reply.text
    assert len(events) <= 2


def test_so_it_is_over_anthropics_api(server: ServerProcess) -> None:
    body = {
        "model": server.model,
        "max_tokens": 4,
        "messages": [{"role": "user", "content": f"Hello {BAD}"}],
    }
    reply = server.http.post(f"{server.url}/v1/messages", json=body)
    assert reply.status_code == 500 and reply.json()["type"] == "error"
    assert "not finite" in reply.json()["error"]["message"]
