"""`omlx-server` of any checkout, which tells the CPU time of its threads.

    PYTHONPATH=CHECKOUT python -P timed_server.py TIMES real|free serve MODEL ...

At each SIGUSR1 it writes a JSON object of CPU seconds since its start to the file TIMES: of the
`process`, of the event `loop`, of the `mlx` thread up to the last time it gave MLX something to
evaluate, and the part `model` of that: calls of the model, and of MLX to evaluate. With `free` the
model computes nothing: its caches grow by zeros, and its logits are a constant.

It imports nothing of this package, so that it can serve a checkout that is older than itself.
"""

import json
import signal
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from omlx_server.cli.app import main

import mlx.core as mx  # isort: skip  (after a BLAS, which omlx_server loads)
from mlx_lm.models.llama import Model  # isort: skip

F = TypeVar("F", bound=Callable[..., Any])

FREE = "free"
# A letter in the vocabulary of the one-layer model (tiny.py).
_TOKEN = 40


class ModelClock:
    """CPU seconds of the one thread that calls what it times."""

    def __init__(self) -> None:
        self.model = 0.0
        self.thread = 0.0
        self._inside = False

    def timed(self, function: F) -> Any:
        """`function`, with its time counted as the model's, unless it is called by such a one."""

        def called(*args: Any, **kwargs: Any) -> Any:
            if self._inside:
                return function(*args, **kwargs)
            self._inside, begun = True, time.thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                self._inside, self.thread = False, time.thread_time()
                self.model += self.thread - begun

        return called

    def time_model(self) -> None:
        """Time all calls of the one-layer model and all evaluations of MLX from now on."""
        Model.__call__ = self.timed(Model.__call__)
        mx.eval, mx.async_eval = self.timed(mx.eval), self.timed(mx.async_eval)


def free(model: Model, inputs: mx.array, cache: Any = None, **_: Any) -> mx.array:
    """What the one-layer model computes, at no cost: logits with which one letter is likeliest."""
    (rows, tokens), args = inputs.shape, model.args
    head = args.hidden_size // args.num_attention_heads
    zeros = _zeros((rows, args.num_key_value_heads, tokens, head))
    for layer in cache or ():
        layer.update_and_fetch(zeros, zeros)
    return _logits(rows, tokens, args.vocab_size)


@cache
def _zeros(shape: tuple[int, ...]) -> mx.array:
    return _made(mx.zeros(shape))


@cache
def _logits(rows: int, tokens: int, vocab: int) -> mx.array:
    likeliest = mx.arange(vocab) == _TOKEN
    return _made(
        mx.contiguous(mx.broadcast_to(likeliest.astype(mx.float32), (rows, tokens, vocab)))
    )


def _made(array: mx.array) -> mx.array:
    mx.eval(array)
    return array


def _serve(times: Path, device: str) -> None:
    clock = ModelClock()
    if device == FREE:
        Model.__call__ = free
    clock.time_model()

    def tell(number: int, frame: object) -> None:
        """Runs on the main thread, which is that of the event loop."""
        told = {
            "process": time.process_time(),
            "loop": time.thread_time(),
            "mlx": clock.thread,
            "model": clock.model,
        }
        unseen = times.with_suffix(".new")
        unseen.write_text(json.dumps(told), encoding="utf-8")
        unseen.replace(times)

    signal.signal(signal.SIGUSR1, tell)
    main()


if __name__ == "__main__":
    _, where, kind, *rest = sys.argv
    sys.argv = ["omlx-server", *rest]
    _serve(Path(where), kind)
