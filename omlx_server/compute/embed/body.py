"""What an embedder and a cross-encoder have in common: a backbone that encodes groups of inputs,
as many together as there is memory for. Owned by the mlx thread."""

from collections.abc import Callable, Sequence

import mlx.core as mx

from omlx_server.compute.embed.batch import Backbone, Batch, Forward, Part, Work
from omlx_server.compute.embed.pace import Pace
from omlx_server.core.encoded import Encoded
from omlx_server.core.memory.encoder import EncoderPlan, Pass
from omlx_server.core.memory.room import Room

Head = Callable[[mx.array, Batch], mx.array]
"""Makes results of the last hidden states [B, L, H]: [B, D] or [B]."""

# Padding may take this share of a group's tokens.
_MAX_PADDING = 0.1


class Body:
    """`plan` says what a pass takes of the memory."""

    def __init__(self, backbone: Backbone, pad_id: int, plan: EncoderPlan) -> None:
        self.plan = plan
        self._backbone = backbone
        self._pad_id = pad_id

    def encode(self, inputs: Sequence[Encoded], head: Head, pace: Pace, room: Room) -> Work:
        """The results of all inputs. Raises NoMemory, once work is asked for, when one of them
        could never fit."""
        lengths = [len(one) for one in inputs]
        room.check(self.plan.needs(Pass(1, max(lengths, default=0), pace.slice_tokens)))
        for indices in group(lengths, pace.group_tokens):
            while indices:
                # They are sorted: so many of them are as wide as the last.
                passes = (Pass(n, lengths[i], pace.slice_tokens) for n, i in enumerate(indices, 1))
                with (yield from room.claim([self.plan.needs(one) for one in passes])) as count:
                    now, indices = indices[:count], indices[count:]
                    batch = Batch.of([inputs[i] for i in now], self._pad_id)
                    values = yield from results(self._backbone, batch, head, pace.slice_tokens)
                    del batch
                yield Part(now, values)


def results(backbone: Backbone, batch: Batch, head: Head, slice_tokens: int) -> Forward:
    """Run one batch, in slices, and return what `head` makes of it, evaluated. Its hidden states
    are gone then."""
    hidden = yield from backbone.run(batch, slice_tokens)
    values = head(hidden, batch)
    mx.eval(values)
    return values


def group(lengths: Sequence[int], most_tokens: int) -> list[tuple[int, ...]]:
    """Indices of `lengths` in groups of similar length, each index once, the shortest first.

    A group, padded, has at most `most_tokens`, unless it is of one input.
    """
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
