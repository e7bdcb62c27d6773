"""The caches of one sequence, and how those of several become one batch.

solo   one cache for each layer; one sequence, no padding
batch  their batch forms: ours keep each row's own length (compute/kv/rows.py), mlx-lm's are
       padded on the left to the longest row

Drafts that were wrong are taken out: keys and values of the last tokens are dropped, and recurrent
states, from which nothing can be dropped, are undone to what they were.
"""

import copy
from collections.abc import Callable, Iterable, Sequence

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from omlx_server.compute.architectures import special
from omlx_server.compute.architectures.pair import members
from omlx_server.compute.codecs.base import Cache
from omlx_server.compute.codecs.registry import codec_of, leaves, replaced
from omlx_server.compute.hardware import device
from omlx_server.compute.hardware.device_policy import compute_copies
from omlx_server.compute.kv.spans import Runs, Segment
from omlx_server.core.speculation.methods import DraftVerification

Caches = list[Cache]


def new_caches(model: nn.Module) -> Caches:
    return special.fresh_caches(model)


def why_alone(model: nn.Module) -> str:
    """Return why rows of this model can't share a batch; empty where they can."""
    if not can_batch(new_caches(model)):
        return "its caches have no batch form"
    return next(filter(None, map(special.why_alone, members(model))), "")


def can_batch(caches: Caches) -> bool:
    return all(codec_of(leaf).batchable(leaf) for leaf in leaves(caches))


def can_group(caches: Caches) -> bool:
    return all(codec_of(leaf).groupable for leaf in leaves(caches))


def is_recurrent(caches: Caches) -> bool:
    """Return whether a layer keeps a recurrent state. Such rows can't be padded on the right."""
    return any(codec_of(leaf).recurrent for leaf in leaves(caches))


def draft_verification(caches: Caches, *, stops_at_row_ends: bool = False) -> DraftVerification:
    """Return when rows with such caches can verify drafts. `stops_at_row_ends`: the forward ends
    each row at its own length, so states can be undone row by row."""
    codecs = [(codec_of(leaf), leaf) for leaf in leaves(caches)]
    # Drafted tokens must leave the caches as a prefill would.
    if not all(codec.stores_decoded for codec, _ in codecs):
        return DraftVerification.NEVER
    if can_take_out_drafts(caches):
        several_rows = can_take_out_by_row(caches)
    elif all(codec.prepare_undo(leaf) is not None for codec, leaf in codecs):
        several_rows = stops_at_row_ends
    else:
        return DraftVerification.NEVER
    return DraftVerification.ALWAYS if several_rows else DraftVerification.ALONE


def can_take_out_by_row(caches: Caches) -> bool:
    """Return whether rows can take back different numbers of drafts."""
    kept = [codec for codec in map(codec_of, leaves(caches)) if not codec.recurrent]
    if is_recurrent(caches):  # states are undone row by row, so the caches beside them must be too
        return all(codec.takes_out_by_row and codec.undoes_by_row for codec in kept)
    return all(codec.takes_out_by_row for codec in kept)


def can_take_out_drafts(caches: Caches) -> bool:
    return all(codec_of(leaf).takes_out_drafts for leaf in leaves(caches))


def prepare_undo(caches: Caches) -> list[Callable[[Sequence[int]], None]]:
    """Return functions that undo the next forward: row i forgets its last counts[i] tokens, all
    or its padding. Empty where `take_out_drafts` suffices."""
    return [] if can_take_out_drafts(caches) else prepare_undo_of_forwards(caches)


def prepare_undo_of_forwards(caches: Caches) -> list[Callable[[Sequence[int]], None]]:
    """Return functions that undo all forwards from now on: row i forgets its last counts[i]
    tokens, of any number of forwards."""
    undos = [codec_of(leaf).prepare_undo(leaf) for leaf in leaves(caches)]
    assert all(undos), "these caches can't verify drafts"
    return [put_back for put_back in undos if put_back is not None]


def forward_decoding(
    model: Callable[..., mx.array], tokens: mx.array, lengths: Sequence[int], caches: Caches
) -> mx.array:
    """Return logits [B, T, V] for `tokens` int [B, T], padded after lengths[i]. Recurrent states
    take in no padding, all other caches do."""
    for leaf in leaves(caches):
        codec_of(leaf).begin_verify(leaf, lengths, tokens.shape[1])
    logits = model(tokens, cache=caches)
    for leaf in leaves(caches):
        codec_of(leaf).end_verify(leaf)
    return logits


def take_out_drafts(caches: Caches, counts: Sequence[int]) -> None:
    """Take row i's last counts[i] tokens, drafts or padding, out of all but recurrent states."""
    for leaf in leaves(caches):
        codec = codec_of(leaf)
        if codec.takes_out_drafts:
            codec.take_out_drafts(leaf, counts)


def begin_decode(caches: Caches) -> None:
    for leaf in leaves(caches):
        codec_of(leaf).begin_decode(leaf)


def fork(caches: Caches, count: int, boundary: int, runs: Runs) -> list[Caches]:
    """Return solo caches of `count` sequences, which share the tokens before `boundary` if many."""
    shared = [leaf for leaf in _leaves_of_ours(caches) if not leaf.empty()]
    if not shared or boundary - shared[0].first <= runs.least:  # too few tokens to share
        return [caches, *(replaced(caches, _copy_if_ours) for _ in range(count - 1))]
    segment = Segment(runs.of(tuple(leaf.strip(0) for leaf in shared)), shared[0].first, boundary)
    spans = {id(leaf): span for leaf, span in zip(shared, segment.spans(), strict=True)}

    def share(leaf: Cache) -> Cache:
        return leaf.reading_span(spans[id(leaf)]) if id(leaf) in spans else leaf

    return [replaced(caches, share) for _ in range(count)]


def _copy_if_ours(leaf: Cache) -> Cache:
    # `replaced` copies the others by itself.
    return copy.deepcopy(leaf) if codec_of(leaf).by_reference else leaf


def hand_over(batch: Caches) -> None:
    """Give what is referred to buffers of its own, before a batch is dropped."""
    for leaf in _leaves_of_ours(batch):
        leaf.hand_over()


def rejoin(caches: Caches) -> None:
    """Let blocks refer again to solo caches whose merge failed."""
    for leaf in _leaves_of_ours(caches):
        leaf.rejoin()


def lose(caches: Caches) -> None:
    """Note that a failed step may have damaged what these caches hold."""
    for leaf in _leaves_of_ours(caches):
        leaf.lose()


def lost_rows(caches: Caches) -> set[int]:
    """Return the rows of a batch that refer to lost tokens; 0 for solo caches."""
    return {row for leaf in _leaves_of_ours(caches) for row in leaf.lost_rows()}


def _leaves_of_ours(caches: Caches) -> list[Cache]:
    return [leaf for leaf in leaves(caches) if codec_of(leaf).by_reference]


def merge(rows: Sequence[Caches]) -> Caches:
    """Return one batch of rows with these solo caches, which stay usable."""
    return [same_layer[0].merge(list(same_layer)) for same_layer in zip(*rows, strict=True)]


def extend(batch: Caches, other: Caches) -> None:
    """Append the rows of `other`, which must not be used afterwards."""
    for mine, theirs in zip(batch, other, strict=True):
        mine.extend(theirs)


def keep_rows(batch: Caches, rows: Sequence[int]) -> None:
    for cache in batch:
        cache.filter(list(rows))


def padded(rows: Sequence[Sequence[int]]) -> mx.array:
    """Return tokens int32 [B, T], padded on the right with zeros."""
    width = max(map(len, rows))
    return mx.array([[*row, *[0] * (width - len(row))] for row in rows], dtype=mx.int32)


def forward_padded(
    model: Callable[..., mx.array], tokens: mx.array, lengths: Sequence[int], caches: Caches
) -> mx.array:
    """Return logits [B, T, V] for `tokens` int [B, T], padded after lengths[i]. No cache takes in
    padding."""
    width = tokens.shape[1]
    padding = [width - length for length in lengths]
    if not any(padding):
        logits: mx.array = model(tokens, cache=caches)
        return logits
    for cache in caches:
        cache.prepare(lengths=list(lengths), right_padding=padding)
    logits = model(tokens, cache=caches)
    for leaf in leaves(caches):
        codec_of(leaf).finalize(leaf)
    return logits


def nbytes(caches: Caches) -> int:
    return sum(cache.nbytes for cache in caches)


def compute_rearranged(caches: Iterable[Cache]) -> None:
    """Compute caches whose rows were moved, a few layers at a time."""
    compute_copies(
        array
        for cache in caches
        for array in dict(tree_flatten(cache.state)).values()
        if isinstance(array, mx.array)
    )


def completion_marker(caches: Caches) -> mx.array:
    """Return a number of the last layer's cache, which is computed once all layers are."""
    state = dict(tree_flatten(caches[-1].state)).values()
    array = [each for each in state if isinstance(each, mx.array) and each.size][-1]
    return array[(0,) * array.ndim] + 0


def evaluate(caches: Caches, *, wait: bool) -> None:
    """Launch the caches' contents, not logits, and `wait` for them."""
    state = [cache.state for cache in caches]
    if wait:
        device.wait_for(state)
    else:
        device.launch(state)
