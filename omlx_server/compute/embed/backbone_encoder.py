"""Encodes inputs in batches, as many at once as there is memory for. Mlx thread."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import mlx.core as mx

from omlx_server.compute.embed.batch import Backbone, Batch, BatchResult, BatchWork, Forward
from omlx_server.compute.hardware import device
from omlx_server.compute.hardware.device_policy import slice_products
from omlx_server.core.encoded import TokenizedText
from omlx_server.core.memory.encoder import EncoderPlan, Pass
from omlx_server.core.memory.room import Room

Head = Callable[[mx.array, Batch], mx.array]
"""Computes the results of a batch, [B, D] or [B], from its last hidden states [B, L, H]."""

_MAX_PADDING = 0.1  # share of a group's tokens
_LEAST_SLICE_TOKENS = 64


@dataclass(frozen=True, slots=True)
class PassSize:
    """At most `group_tokens` are computed together, `slice_tokens` in one slice."""

    group_tokens: int
    slice_tokens: int

    @classmethod
    def of(cls, layers: int, hidden: int) -> "PassSize":
        """Return the sizes for a backbone with so many layers of this width."""
        # On the CPU backend larger groups outgrow the processor's caches.
        group_tokens = 256 if device.is_cpu() else 4096
        slice_tokens = int(slice_products() / (12 * layers * hidden**2))
        return cls(group_tokens, min(group_tokens, max(_LEAST_SLICE_TOKENS, slice_tokens)))


class BackboneEncoder:
    """Encodes inputs with a backbone. `plan` estimates a pass's memory."""

    def __init__(self, backbone: Backbone, pad_id: int, plan: EncoderPlan) -> None:
        self.plan = plan
        self._backbone = backbone
        self._pad_id = pad_id

    def encode(
        self, inputs: Sequence[TokenizedText], head: Head, pass_size: PassSize, room: Room
    ) -> BatchWork:
        """Compute all inputs, shorter ones first. Raises NoMemory if one never fits."""
        lengths, slice_tokens = [len(one) for one in inputs], pass_size.slice_tokens
        room.check(self.plan.needs(Pass(1, max(lengths, default=0), slice_tokens)))
        for waiting in group_by_length(lengths, pass_size.group_tokens):
            while waiting:
                # Inputs are sorted by length, so the first n are as wide as number n.
                passes = (Pass(n, lengths[i], slice_tokens) for n, i in enumerate(waiting, 1))
                with (yield from room.claim([self.plan.needs(one) for one in passes])) as count:
                    indices, waiting = waiting[:count], waiting[count:]
                    batch = Batch.of([inputs[i] for i in indices], self._pad_id)
                    values = yield from compute_batch(self._backbone, batch, head, slice_tokens)
                    del batch  # before the memory is given back
                yield BatchResult(indices, values)


def compute_batch(backbone: Backbone, batch: Batch, head: Head, slice_tokens: int) -> Forward:
    """Return the evaluated results of `head` for one batch, in slices."""
    hidden = yield from backbone.run(batch, slice_tokens)
    values = head(hidden, batch)
    mx.eval(values)
    return values


def group_by_length(lengths: Sequence[int], most_tokens: int) -> list[tuple[int, ...]]:
    """Return indices in groups of similar length, shorter inputs first."""
    groups: list[tuple[int, ...]] = []
    current: list[int] = []
    tokens = 0  # of the current group, without padding
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        padded_tokens = (len(current) + 1) * lengths[index]
        tokens += lengths[index]
        has_much_padding = padded_tokens - tokens > _MAX_PADDING * padded_tokens
        if current and (padded_tokens > most_tokens or has_much_padding):
            groups.append(tuple(current))
            current, tokens = [], lengths[index]
        current.append(index)
    return [*groups, tuple(current)] if current else groups
