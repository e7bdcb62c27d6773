"""What mlx-lm's own forward says of continuations: the judge of log-likelihoods that a client got.

Runs in the project's environment. Standard input: `{"model": DIRECTORY, "pairs": [[context,
continuation], …]}`, all token ids; standard output: `[[log-likelihood, is greedy], …]`.
"""

import json
import sys
from pathlib import Path

import omlx_server.compute  # noqa: F401  (the fast BLAS, before any mlx)

# isort: split
import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from omlx_server.compute.model.loader import LoadedModel, load
from tests.arrays import plain


def likelihood(loaded: LoadedModel, context: list[int], after: list[int]) -> tuple[float, bool]:
    tokens = mx.array([[*context, *after]])
    logits = loaded.model(tokens[:, :-1], cache=make_prompt_cache(loaded.model))[0]
    logits = logits[len(context) - 1 :].astype(mx.float32)
    logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    chosen = mx.take_along_axis(logprobs, mx.array(after)[:, None], axis=-1)
    greedy = mx.all(mx.argmax(logprobs, axis=-1) == mx.array(after))
    return sum(plain(value) for value in chosen[:, 0]), bool(greedy.item())


def main() -> None:
    asked = json.load(sys.stdin)
    loaded = load(Path(asked["model"]))
    json.dump([likelihood(loaded, *pair) for pair in asked["pairs"]], sys.stdout)


if __name__ == "__main__":
    main()
