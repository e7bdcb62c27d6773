"""The starter's own file, served as it is, answers as the weights that it is converted to."""

from pathlib import Path

import mlx.core as mx
import pytest

from omlx_server.compute.model.loader import load
from omlx_server.text.tokenizer import Tokenizer
from tests.api.harness import UNPROBED, serving
from tests.compute.oracle import is_greedy

TEXT = "The capital of France is"


def test_answers_are_those_of_the_converted_weights(
    starter_dir: Path, starter_gguf: Path, tmp_path: Path
) -> None:
    body = {"prompt": TEXT, "max_tokens": 8, "temperature": 0, "logprobs": 1, "ignore_eos": True}
    with serving(str(starter_gguf), tmp_path, f"models.dirs={tmp_path}", UNPROBED) as server:
        body["model"] = server.model
        answer = server.http.post(f"{server.url}/v1/completions", json=body).json()
    [choice], model = answer["choices"], load(starter_dir).model
    tokenizer = Tokenizer.load(starter_dir)
    prompt, tokens = tokenizer.encode_prompt(TEXT), tokenizer.encode(choice["text"])
    assert answer["usage"]["prompt_tokens"] == len(prompt) and len(tokens) == 8
    assert is_greedy(model, prompt, tokens)
    logits = model(mx.array([[*prompt, *tokens[:-1]]]))[0, len(prompt) - 1 :]
    chances = mx.max(logits - mx.logsumexp(logits, axis=-1, keepdims=True), axis=-1)
    assert choice["logprobs"]["token_logprobs"] == pytest.approx(chances.tolist(), abs=1e-3)
