"""The only table of single architectures of mlx-lm. `scripts/campaign architectures` finds them."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import KVCache, RotatingKVCache, make_prompt_cache
from mlx_lm.models.rope_utils import DynamicNTKScalingRoPE

from omlx_server.compute.kv.latent import GroupedMaskKVCache
from omlx_server.compute.kv.schemes.plain import Plain

# Architectures that answer wrongly in a batch, whose rows are padded on the left, and why.
SERVED_ALONE: Mapping[str, str] = {
    "afm7": "its layers without keys of their own take positions from the batch",
    "gpt_bigcode": "its position embeddings are looked up for one length",
    "longcat_flash_ngram": "its state of n-grams has as many tokens as were read, up to n",
    "minimax_m3_vl": "its sparse attention divides the places of the batch into blocks",
    "phi3small": "its sparse attention divides the places of the batch into blocks",
}
# Architectures whose caches can't be reused for another prompt, and why.
NOT_REUSED: Mapping[str, str] = {
    "phi3small": "mlx-lm lets its tokens see those behind them in the same pass",
}


class InclusiveRing(RotatingKVCache):  # type: ignore[misc]
    """A ring of `max_size` tokens for a decode, and of one more for a prefill, until
    `begin_decode`. Merging makes mlx-lm's batch form, for decoding only."""

    decodes = False

    def begin_decode(self) -> None:
        self.decodes = True

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        if self.decodes:
            return super().update_and_fetch(keys, values)  # type: ignore[no-any-return]
        with self._one_token_wider():
            return self._update_concat(keys, values)  # type: ignore[no-any-return]

    def make_mask(self, N: int, *args: Any, **options: Any) -> mx.array | str | None:
        if self.decodes:
            return super().make_mask(N, *args, **options)  # type: ignore[no-any-return]
        with self._one_token_wider():
            return super().make_mask(N, *args, **options)  # type: ignore[no-any-return]

    @contextmanager
    def _one_token_wider(self) -> Iterator[None]:
        self.max_size += 1
        try:
            yield
        finally:
            self.max_size -= 1


def architecture_of(model: nn.Module) -> str:
    """Return the name of the module of mlx-lm that has the model's class."""
    return type(model).__module__.rpartition(".")[2]


def why_alone(model: nn.Module) -> str:
    """Return why sequences can't share a batch; empty if they can."""
    if any(isinstance(module, DynamicNTKScalingRoPE) for module in model.modules()):
        return "its positions are scaled by the length of one sequence"
    return SERVED_ALONE.get(architecture_of(model), "")


def fresh_caches(model: nn.Module) -> list[Any]:
    return adapted(model, make_prompt_cache(model))


def adapted(model: nn.Module, caches: list[Any]) -> list[Any]:
    """Return fresh `caches`, with ours where mlx-lm's would give wrong answers."""
    match architecture_of(model):
        case "gemma2" if model.args.num_attention_heads != model.args.num_key_value_heads:
            return [GroupedMaskKVCache(Plain()) if type(c) is KVCache else c for c in caches]
        case "plamo3":
            return [InclusiveRing(c.max_size) if type(c) is RotatingKVCache else c for c in caches]
    return caches
