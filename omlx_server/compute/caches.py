"""The caches of one sequence, as its model makes them, and how those of several become one batch.

    solo   one cache for each layer, of the model's own class or ours; one sequence, no padding
    batch  the batch forms of these: our full-attention caches keep each row's own length
           (compute/kv/rows.py), mlx-lm's caches are padded on the left to the longest row

A model whose caches have no batch form (llama4), or that compute/architectures/ names, runs one
sequence at a time.
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
from omlx_server.compute.hardware.copies import compute_copies
from omlx_server.compute.kv.spans import Runs, Segment
from omlx_server.core.speculation.verifies import Verifies

Caches = list[Cache]


def new_caches(model: nn.Module) -> Caches:
    """Fresh, empty caches for one sequence. A model may have fewer caches than layers."""
    return special.fresh_caches(model)


def why_alone(model: nn.Module) -> str:
    """Why rows of this model can't run in one batch; empty where they can."""
    if not can_batch(new_caches(model)):
        return "its caches have no batch form"
    return next(filter(None, map(special.why_alone, members(model))), "")


def can_batch(caches: Caches) -> bool:
    """Whether all of these solo caches have a batch form."""
    return all(codec_of(leaf).batchable(leaf) for leaf in leaves(caches))


def can_group(caches: Caches) -> bool:
    """Whether chunks of several prompts may run in one forward."""
    return all(codec_of(leaf).groupable for leaf in leaves(caches))


def is_recurrent(caches: Caches) -> bool:
    """Whether a layer keeps a recurrent state, so that rows can't be padded on the right."""
    return any(codec_of(leaf).recurrent for leaf in leaves(caches))


def verifies(caches: Caches, *, stops_at_row_ends: bool = False) -> Verifies:
    """When rows with such solo caches can verify drafts. Not where a decode leaves something else
    than a prefill of the same tokens does. Recurrent states are put back, and computed again from
    the tokens that were right: of rows together if these layers stop at the end of each."""
    found = [(codec_of(leaf), leaf) for leaf in leaves(caches)]
    if not all(codec.stores_decoded for codec, _ in found):
        return Verifies.NEVER
    if can_cut_back(caches):
        return Verifies.ALWAYS if cuts_rows_apart(caches) else Verifies.ALONE
    if not all(codec.undo(leaf) is not None for codec, leaf in found):
        return Verifies.NEVER
    return Verifies.ALWAYS if stops_at_row_ends else Verifies.ALONE


def cuts_rows_apart(caches: Caches) -> bool:
    """Whether rows with such caches can take back different numbers of tokens, as they must beside
    others: recurrent states aside, and where there are any, rings not."""
    codecs, has_states = [codec_of(leaf) for leaf in leaves(caches)], is_recurrent(caches)
    return all(
        codec.recurrent or (codec.cuts_rows_cheaply and (codec.puts_rows_back or not has_states))
        for codec in codecs
    )


def can_cut_back(caches: Caches) -> bool:
    """Whether all of these caches can forget their newest tokens."""
    return all(codec_of(leaf).cuts_back for leaf in leaves(caches))


def undo(caches: Caches) -> list[Callable[[Sequence[int]], None]]:
    """What undoes the next forward, of each leaf: called with counts, row i forgets its last
    counts[i] tokens, which are all that the forward brings, or its padding. Nothing where any
    number can be cut back."""
    if can_cut_back(caches):
        return []
    made = [codec_of(leaf).undo(leaf) for leaf in leaves(caches)]
    return [put_back for put_back in made if put_back is not None]


def undo_all(caches: Caches) -> list[Callable[[Sequence[int]], None]]:
    """What undoes all forwards from now on, of each leaf: called with one number for every row, as
    many as they bring. For caches that can verify drafts."""
    made = [codec_of(leaf).undo(leaf) for leaf in leaves(caches)]
    assert all(made), "these caches can't verify drafts"
    return [put_back for put_back in made if put_back is not None]


def forward_decoding(
    model: Callable[..., mx.array], tokens: mx.array, lengths: Sequence[int], caches: Caches
) -> mx.array:
    """Logits [B, T, V] for `tokens` int [B, T] of rows that decode, of which row i has lengths[i],
    then padding. Recurrent states take in each row's own tokens only; all else takes in the padding
    too, until it is cut back."""
    for leaf in leaves(caches):
        codec_of(leaf).begin_verify(leaf, lengths, tokens.shape[1])
    logits = model(tokens, cache=caches)
    for leaf in leaves(caches):
        codec_of(leaf).end_verify(leaf)
    return logits


def cut_back(caches: Caches, counts: Sequence[int]) -> None:
    """Forget the last counts[i] tokens of row i, of which the newest forward has brought more. A
    recurrent state stays as it is."""
    for leaf in leaves(caches):
        codec = codec_of(leaf)
        if codec.cuts_back:
            codec.cut_back(leaf, counts)


def begin_decode(caches: Caches) -> None:
    """Tell solo caches that from now on tokens are decoded, which matters to some classes."""
    for leaf in leaves(caches):
        codec_of(leaf).begin_decode(leaf)


def forked(caches: Caches, count: int, boundary: int, runs: Runs) -> list[Caches]:
    """Solo caches of `count` sequences that begin with the tokens of these, for a batch of them.
    Where its own tokens before `boundary` are many, all refer to them; the rest is copied when the
    batch is made."""
    own = [leaf for leaf in leaves(caches) if codec_of(leaf).by_reference and not leaf.empty()]
    if not own or boundary - own[0].first <= runs.least:
        return [caches, *(replaced(caches, _twin) for _ in range(count - 1))]
    segment = Segment(runs.of(tuple(leaf.strip(0) for leaf in own)), own[0].first, boundary)
    spans = {id(leaf): span for leaf, span in zip(own, segment.spans(), strict=True)}
    return [
        replaced(caches, lambda leaf: leaf.behind(spans[id(leaf)]) if id(leaf) in spans else leaf)
        for _ in range(count)
    ]


def _twin(leaf: Cache) -> Cache:
    """A cache of the same tokens, which no block refers to."""
    return copy.deepcopy(leaf) if codec_of(leaf).by_reference else leaf


def leave(batch: Caches) -> None:
    """Before a batch is dropped with all of its rows: leave to blocks and rows what they refer
    to."""
    for leaf in leaves(batch):
        codec_of(leaf).leave(leaf)


def rejoin(caches: Caches) -> None:
    """Have blocks refer to solo caches again that were merged into a batch in vain."""
    for leaf in leaves(caches):
        codec_of(leaf).rejoin(leaf)


def lose(caches: Caches) -> None:
    """Note that blocks may not use what is in caches any more, since a step has failed."""
    for leaf in leaves(caches):
        codec_of(leaf).lose(leaf)


def lost_rows(caches: Caches) -> set[int]:
    """The rows of a batch that refer to tokens that are lost; 0 if those of solo caches do."""
    return {row for leaf in leaves(caches) for row in codec_of(leaf).lost_rows(leaf)}


def merge(rows: Sequence[Caches]) -> Caches:
    """Merge solo caches of several sequences into one batch. The solo caches stay usable; rows are
    copied, a lone row of our caches only once it is written to."""
    return [members[0].merge(list(members)) for members in zip(*rows, strict=True)]


def extend(batch: Caches, other: Caches) -> None:
    """Append the rows of `other` to `batch`, and modify that. Copies both, or of our caches the
    groups that are merged. `other` should not be used any more."""
    for mine, theirs in zip(batch, other, strict=True):
        mine.extend(theirs)


def keep_rows(batch: Caches, rows: Sequence[int]) -> None:
    """Keep only these rows of a batch, in this order, and modify it. Copies the rows that are kept,
    or of our caches the groups that lose a row."""
    for cache in batch:
        cache.filter(list(rows))


def padded(rows: Sequence[Sequence[int]]) -> mx.array:
    """Tokens int32 [B, T] of rows of different lengths, padded on the right with zeros."""
    width = max(map(len, rows))
    return mx.array([[*row, *[0] * (width - len(row))] for row in rows], dtype=mx.int32)


def forward_padded(
    model: Callable[..., mx.array], tokens: mx.array, lengths: Sequence[int], caches: Caches
) -> mx.array:
    """Logits [B, T, V] for `tokens` int [B, T], of which row i has lengths[i], then padding. The
    caches take in each row's own tokens only. Does not wait for the device."""
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
    """Bytes of the buffers of caches, room for more tokens included."""
    return sum(cache.nbytes for cache in caches)


def compute_rearranged(caches: Iterable[Cache]) -> None:
    """Compute caches that rows came into or left, part by part (hardware/copies.py). When a cache
    is taken from `caches`, all before it are launched but the last part."""
    compute_copies(
        array
        for cache in caches
        for array in dict(tree_flatten(cache.state)).values()
        if isinstance(array, mx.array)
    )


def one_number(caches: Caches) -> mx.array:
    """One number of the last layer, which the device has when it has computed all layers. It is a
    copy: what refers to an array of a cache keeps that from being written in place."""
    state = dict(tree_flatten(caches[-1].state)).values()
    array = [one for one in state if isinstance(one, mx.array) and one.size][-1]
    return array[(0,) * array.ndim] + 0


def evaluate(caches: Caches, *, wait: bool) -> None:
    """Launch the computation of what the caches hold, and with `wait` wait for it. The logits of a
    prefill are not asked for, so they are never computed."""
    state = [cache.state for cache in caches]
    if wait:
        device.wait_for(state)
    else:
        device.launch(state)
