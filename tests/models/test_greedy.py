"""The whole conversion at once: the converted model answers a question."""

from pathlib import Path

import mlx.core as mx
import pytest
from mlx_lm import load, stream_generate

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
LONGER = [{"role": "user", "content": "Name three colours of the rainbow."}]

# Greedy, float32, CPU.
PARIS = [504, 3575, 282, 4649, 314, 7042, 30, 2]
RAINBOW = [504, 24594, 314, 253, 3953, 6968, 28, 564, 357, 506, 441, 915]


def greedy(
    directory: Path, messages: list[dict[str, str]], max_tokens: int
) -> tuple[list[int], str]:
    with mx.stream(mx.cpu):
        model, tokenizer = load(str(directory))[:2]
        prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True)
        steps = list(stream_generate(model, tokenizer, prompt, max_tokens=max_tokens))
    return [step.token for step in steps], "".join(step.text for step in steps)


@pytest.mark.parametrize(
    ("messages", "tokens", "words"),
    [(QUESTION, PARIS, "Paris"), (LONGER, RAINBOW, "The rainbow is")],
)
def test_greedy_answer(
    starter_dir: Path, messages: list[dict[str, str]], tokens: list[int], words: str
) -> None:
    ids, text = greedy(starter_dir, messages, len(tokens))
    assert words in text
    assert ids == tokens
