"""Encodes groups of inputs, as many at once as there is memory for. Mlx thread."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import mlx.core as mx

from omlx_server.compute.embed.batch import Backbone, Batch, BatchResult, Forward, Work
from omlx_server.compute.hardware import device
from omlx_server.compute.hardware.device_policy import slice_products
from omlx_server.core.encoded import TokenizedText
from omlx_server.core.memory.encoder import EncoderPlan, Pass
from omlx_server.core.memory.room import Room

Head = Callable[[mx.array, Batch], mx.array]
"""Computes the results of a batch, [B, D] or [B], from its last hidden states [B, L, H]."""

# At most this share of a group's tokens may be padding.
_MAX_PADDING = 0.1
_LEAST_TOKENS = 64


@dataclass(frozen=True, slots=True)
class PassSize:
    """`group_tokens` are computed together, `slice_tokens` in one slice."""

    group_tokens: int
    slice_tokens: int

    @classmethod
    def of(cls, layers: int, hidden: int) -> "PassSize":
        """On the CPU backend larger groups outgrow the processor's caches."""
        group = 256 if device.is_cpu() else 4096
        tokens = int(slice_products() / (12 * layers * hidden**2))
        return cls(group, min(group, max(_LEAST_TOKENS, tokens)))


class BackboneEncoder:
    """Encodes inputs with a backbone. `plan` estimates a pass's memory."""

    def __init__(self, backbone: Backbone, pad_id: int, plan: EncoderPlan) -> None:
        self.plan = plan
        self._backbone = backbone
        self._pad_id = pad_id

    def encode(
        self, inputs: Sequence[TokenizedText], head: Head, pace: PassSize, room: Room
    ) -> Work:
        """Compute all inputs, shorter ones first. Raises NoMemory if one never fits."""
        lengths = [len(one) for one in inputs]
        room.check(self.plan.needs(Pass(1, max(lengths, default=0), pace.slice_tokens)))
        for indices in group(lengths, pace.group_tokens):
            while indices:
                # Inputs are sorted by length, so a batch is as wide as its last input.
                passes = (Pass(n, lengths[i], pace.slice_tokens) for n, i in enumerate(indices, 1))
                with (yield from room.claim([self.plan.needs(one) for one in passes])) as count:
                    now, indices = indices[:count], indices[count:]
                    batch = Batch.of([inputs[i] for i in now], self._pad_id)
                    values = yield from results(self._backbone, batch, head, pace.slice_tokens)
                    del batch
                yield BatchResult(now, values)


def results(backbone: Backbone, batch: Batch, head: Head, slice_tokens: int) -> Forward:
    hidden = yield from backbone.run(batch, slice_tokens)
    values = head(hidden, batch)
    mx.eval(values)
    return values


def group(lengths: Sequence[int], most_tokens: int) -> list[tuple[int, ...]]:
    """Return indices in groups of similar length, shorter inputs first."""
    groups: list[tuple[int, ...]] = []
    current: list[int] = []
    tokens = 0
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        padded = (len(current) + 1) * lengths[index]
        tokens += lengths[index]
        if current and (padded > most_tokens or padded - tokens > _MAX_PADDING * padded):
            groups.append(tuple(current))
            current, tokens = [], lengths[index]
        current.append(index)
    return [*groups, tuple(current)] if current else groups
