"""Qwen3 without its head, for embeddings. Padding on the right needs no mask under causal
attention. Mlx thread."""

from collections.abc import Mapping
from copy import copy
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import KVCache
from mlx_lm.models.qwen3 import ModelArgs, Qwen3Model

from omlx_server.compute.embed.batch import Batch, Forward
from omlx_server.compute.weights.weights import quantise_like
from omlx_server.core.memory.encoder import EncoderShape
from omlx_server.core.model_files.weights import own_quantization
from omlx_server.errors import ModelUnavailable, one_line


class Qwen3:
    """A `Backbone`. A batch longer than a slice is encoded in chunks with KV caches."""

    def __init__(self, body: nn.Module) -> None:
        self.body = body

    def run(self, batch: Batch, slice_tokens: int) -> Forward:
        rows, width = batch.ids.shape
        chunk = max(1, slice_tokens // rows)  # tokens of each row
        if chunk >= width:
            hidden: mx.array = self.body(batch.ids)
            return hidden
        caches = [KVCache() for _ in self.body.layers]
        chunks: list[mx.array] = []
        for start in range(0, width, chunk):
            if start:
                mx.eval(chunks[-1])
                yield
            chunks.append(self.body(batch.ids[:, start : start + chunk], cache=caches))
        return mx.concatenate(chunks, axis=1)

    def shallow(self, layers: int) -> "Qwen3":
        body = copy(self.body)
        body.layers = self.body.layers[:layers]
        return Qwen3(body)

    def shape(self, width: int) -> EncoderShape:
        args = self.body.args
        return EncoderShape(
            layers=len(self.body.layers),
            hidden=args.hidden_size,
            intermediate=args.intermediate_size,
            heads=args.num_attention_heads,
            kv_heads=args.num_key_value_heads,
            head_dim=args.head_dim,
            width=width,
            causal=True,
        )


def make_body(config: Mapping[str, Any], weights: Mapping[str, mx.array]) -> nn.Module:
    """Return mlx-lm's Qwen3 without its head, with random weights, quantised where `weights` has
    scales. Raises ModelUnavailable."""
    try:
        body: nn.Module = Qwen3Model(ModelArgs.from_dict(dict(config)))
    except (TypeError, ValueError, KeyError) as error:
        raise ModelUnavailable(f"config.json: {one_line(error)}") from error
    if own_quantization(config):
        quantise_like(body, weights)
    return body
