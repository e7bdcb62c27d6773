"""Samples one token per row, or per state of a row that verifies a draft, from logits: by per-row
parameters, reproducible in any batch.

The order is that of vLLM: log-probabilities of the raw logits; then logit_bias, penalties, banned
stop tokens; the mask of a constraint; temperature; min_p; top_k; top_p; then argmax(logits +
Gumbel noise), which samples from the softmax. A row's noise depends on its seed, choice and
position only, never on other rows or on the global generator.

Rows that ask for nothing special cost an argmax. Everything else is computed only for the rows that
ask for it, so a row's numbers are the same alone and in a batch.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import mlx.core as mx
import numpy as np

from omlx_server.core.request import (
    Constraint,
    Logprobs,
    SampledRow,
    SampledToken,
    SamplingParams,
)
from omlx_server.core.step import Join, SequenceId

_NEVER = float("-inf")


@dataclass(slots=True, eq=False)
class Row:
    """Sampling state of one live row. Arrays have shape [V]; None where a row needs none.

    `position` counts the tokens before the one to be sampled next.
    """

    id: SequenceId
    sampling: SamplingParams
    position: int
    generated: int
    bias: mx.array | None = None
    prompt_seen: mx.array | None = None
    counts: mx.array | None = None
    banned: mx.array | None = None
    constraint: Constraint | None = None

    @classmethod
    def of(cls, join: Join, vocab: int) -> "Row":
        """State of a row that is about to sample its first (or, resumed, its next) token."""
        sampling = join.sampling
        generated = join.context[join.prompt_tokens :]
        row = cls(join.id, sampling, len(join.context), len(generated))
        if sampling.logit_bias:
            row.bias = _scatter(vocab, [(i, b) for i, b in sampling.logit_bias])
        if _penalised(sampling):
            prompt = join.context[: join.prompt_tokens]
            row.prompt_seen = _scatter(vocab, [(i, 1.0) for i in set(prompt)])
            row.counts = mx.zeros(vocab)
            if generated:
                row.counts = row.counts.at[mx.array(generated)].add(mx.ones(len(generated)))
        if sampling.min_tokens > len(generated):
            row.banned = _scatter(vocab, [(i, _NEVER) for i in sampling.stop_ids])
        if join.constraint is not None:
            row.constraint = join.constraint.copy()
            for token in generated:
                row.constraint.take(token)
        return row

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays."""
        arrays = self.bias, self.prompt_seen, self.counts, self.banned
        return sum(array.nbytes for array in arrays if array is not None)

    @property
    def banning(self) -> bool:
        """Whether stop tokens are banned, because min_tokens are not yet generated."""
        return self.banned is not None and self.generated < self.sampling.min_tokens

    @property
    def shaped(self) -> bool:
        """Whether a ban of stop tokens, logit_bias or penalties change this row's logits."""
        return self.banning or self.bias is not None or self.counts is not None

    @property
    def constrained(self) -> bool:
        return self.constraint is not None and not self.constraint.problem

    def key(self) -> tuple[int, int]:
        """The random key of the next token, from (seed, choice, position)."""
        sampling = self.sampling
        text = f"{sampling.seed}:{self.id.choice}:{self.position}".encode()
        digest = hashlib.blake2b(text, digest_size=8).digest()
        return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")

    def ahead(self, draft: Sequence[int]) -> "list[Row]":
        """Its states before each sample of a step that verifies a draft: this row itself, then one
        behind each drafted token, with a copy of the constraint. The draft ends where the
        constraint ends or does not allow it."""
        if self.constraint is not None and not self.constraint.takes_drafts:
            return [self]
        states = [self]
        for token in draft:
            after = states[-1]._behind(token)
            if after is None:
                break
            states.append(after)
        return states

    def _behind(self, token: int) -> "Row | None":
        """The state after a drafted token; None where the answer can't go on after it."""
        constraint = self.constraint
        if constraint is not None:
            if constraint.problem or not _allows(constraint.mask(), token):
                return None
            constraint = constraint.copy()
            constraint.take(token)
            if constraint.problem or constraint.done:
                return None
        after = replace(self, constraint=constraint)
        after.took(mx.array(token))
        return after

    def took(self, token: mx.array) -> None:
        """Note a token that was drafted or sampled for this row: an int32 scalar, perhaps not yet
        computed."""
        self.position += 1
        self.generated += 1
        if self.counts is not None:
            self.counts = self.counts.at[token].add(1.0)


@dataclass(slots=True, eq=False)
class Sampled:
    """The sampled tokens int32 [B] of a step, still on the device: one for each row, or for each
    state of rows that verify drafts. Each of the `constraints`, by row, takes its row's token in
    `outcome`.

    W rows, those in `logprob_rows`, ask for log-probabilities: `chosen` [W] are those of the
    sampled tokens, `top_ids` and `top_values` [W, K] the likeliest tokens, `widths` how many of
    these each row asks for.
    """

    tokens: mx.array
    constraints: dict[int, Constraint] = field(default_factory=dict)
    logprob_rows: list[int] = field(default_factory=list)
    widths: list[int] = field(default_factory=list)
    chosen: mx.array | None = None
    top_ids: mx.array | None = None
    top_values: mx.array | None = None

    def arrays(self) -> list[mx.array]:
        candidates = (self.tokens, self.chosen, self.top_ids, self.top_values)
        return [array for array in candidates if array is not None]

    def to_host(self) -> list[SampledRow]:
        """Wait for the decode and bring its results to the host. Advances the constraints, so it is
        to be called once."""
        tokens = self.on_host()
        return [self.outcome(row, tokens[row : row + 1]) for row in range(len(tokens))]

    def on_host(self) -> list[SampledToken]:
        """Wait for the decode and bring its tokens to the host."""
        tokens: list[int] = self.tokens.tolist()  # type: ignore[assignment]
        logprobs = self._logprobs()
        return [SampledToken(token, logprobs.get(row)) for row, token in enumerate(tokens)]

    def outcome(self, row: int, tokens: Sequence[SampledToken]) -> SampledRow:
        """What a step gave to a row, whose last token was sampled in `row` here. Advances the
        constraint by that token."""
        constraint = self.constraints.get(row)
        if constraint is None:
            return SampledRow(tuple(tokens))
        if not constraint.problem:
            constraint.take(tokens[-1].id)
        done, problem = constraint.done, constraint.problem or ""
        costly = bool(problem) and constraint.too_costly
        return SampledRow(tuple(tokens), done, tuple(constraint.forced()), problem, costly)

    def _logprobs(self) -> dict[int, Logprobs]:
        if self.chosen is None:
            return {}
        chosen: list[float] = self.chosen.tolist()  # type: ignore[assignment]
        count = len(chosen)
        ids: list[list[int]] = self.top_ids.tolist() if self.top_ids is not None else [[]] * count  # type: ignore[assignment]
        values: list[list[float]] = (
            self.top_values.tolist() if self.top_values is not None else [[]] * count  # type: ignore[assignment]
        )
        return {
            row: Logprobs(chosen[i], tuple(zip(ids[i][:width], values[i][:width], strict=True)))
            for i, (row, width) in enumerate(zip(self.logprob_rows, self.widths, strict=True))
        }


def sample(logits: mx.array, rows: Sequence[Row]) -> Sampled:
    """Choose a token for each row, and note it in the row. `logits` are [B, V] of any float dtype.
    Nothing is launched here."""
    logits = logits.astype(mx.float32)
    scores = _for_rows(
        logits, [r.shaped for r in rows], lambda x, i: _shape(x, [rows[j] for j in i])
    )
    scores = _for_rows(
        scores, [r.constrained for r in rows], lambda x, i: _allowed(x, [rows[j] for j in i])
    )
    scores = _for_rows(
        scores, [not r.sampling.greedy for r in rows], lambda x, i: _noisy(x, [rows[j] for j in i])
    )
    constraints = {i: r.constraint for i, r in enumerate(rows) if r.constraint is not None}
    sampled = Sampled(mx.argmax(scores, axis=-1).astype(mx.int32), constraints)
    _add_logprobs(sampled, logits, rows)
    for index, row in enumerate(rows):
        row.took(sampled.tokens[index])
    return sampled


def _for_rows(
    x: mx.array, wanted: Sequence[bool], change: Callable[[mx.array, list[int]], mx.array]
) -> mx.array:
    """x [B, V] with the wanted rows replaced by change(rows, their indices). x is not modified."""
    indices = [i for i, yes in enumerate(wanted) if yes]
    if not indices:
        return x
    if len(indices) == len(wanted):
        return change(x, indices)
    at = mx.array(indices)
    result = mx.array(x)
    result[at] = change(x[at], indices)
    return result


def _shape(logits: mx.array, rows: Sequence[Row]) -> mx.array:
    """Logits [R, V] with logit_bias, penalties and banned stop tokens applied."""
    return mx.stack([_shape_row(logits[i], row) for i, row in enumerate(rows)])


def _allowed(logits: mx.array, rows: Sequence[Row]) -> mx.array:
    """Logits [R, V], -inf for tokens that the row's constraint does not allow."""
    masks = mx.stack(
        [_words(row.constraint.mask(), logits.shape[1]) for row in rows if row.constraint]
    )
    bits = (masks[:, :, None] >> mx.arange(32, dtype=mx.uint32)) & 1
    allowed = bits.reshape(len(rows), -1)[:, : logits.shape[1]] == 1
    return mx.where(allowed, logits, _NEVER)


def _allows(mask: bytes, token: int) -> bool:
    """Whether a constraint's mask allows a token."""
    byte = token // 8  # words are little-endian
    return byte < len(mask) and bool(mask[byte] >> token % 8 & 1)


def _words(mask: bytes, vocab: int) -> mx.array:
    """A constraint's mask as u32 [vocab / 32, rounded up], padded with zeros: a grammar may know
    fewer tokens than the model has logits."""
    size = -(-vocab // 32) * 4
    return mx.array(np.frombuffer(mask[:size].ljust(size, b"\0"), dtype="<u4"))


def _shape_row(logits: mx.array, row: Row) -> mx.array:
    sampling = row.sampling
    if row.bias is not None:
        logits = logits + row.bias
    if row.counts is not None and row.prompt_seen is not None:
        generated = row.counts > 0
        seen = generated | (row.prompt_seen > 0)
        penalty = sampling.repetition_penalty
        logits = mx.where(seen, mx.where(logits > 0, logits / penalty, logits * penalty), logits)
        logits = logits - sampling.frequency_penalty * row.counts
        logits = mx.where(generated, logits - sampling.presence_penalty, logits)
    if row.banned is not None and row.banning:
        logits = logits + row.banned
    return logits


def _noisy(logits: mx.array, rows: Sequence[Row]) -> mx.array:
    """Logits [R, V] divided by the temperature and filtered, plus Gumbel noise."""
    temperature = mx.array([[row.sampling.temperature] for row in rows])
    scaled = logits / temperature
    filtered = [_min_p, _top_k_top_p]
    for narrow in filtered:
        scaled = narrow(scaled, rows)
    keys = mx.array([row.key() for row in rows], dtype=mx.uint32)
    vocab = logits.shape[-1]
    return scaled + mx.vmap(lambda key: mx.random.gumbel((vocab,), key=key))(keys)


def _min_p(logits: mx.array, rows: Sequence[Row]) -> mx.array:
    """Drop tokens less likely than min_p times the likeliest."""

    def narrow(x: mx.array, indices: list[int]) -> mx.array:
        floor = mx.array([[rows[i].sampling.min_p] for i in indices])
        return mx.where(x >= x.max(axis=-1, keepdims=True) + mx.log(floor), x, _NEVER)

    return _for_rows(logits, [row.sampling.min_p > 0 for row in rows], narrow)


def _top_k_top_p(logits: mx.array, rows: Sequence[Row]) -> mx.array:
    """Keep the top_k likeliest tokens, then the smallest set of those that reaches top_p.

    Together they give one threshold for the logits; tokens as likely as the last kept one are kept.
    """

    def narrow(x: mx.array, indices: list[int]) -> mx.array:
        vocab = x.shape[-1]
        descending = -mx.sort(-x, axis=-1)
        k = mx.array([[rows[i].sampling.top_k or vocab] for i in indices])
        p = mx.array([[rows[i].sampling.top_p] for i in indices])
        in_k = mx.arange(vocab)[None] < k
        probs = mx.softmax(mx.where(in_k, descending, _NEVER), axis=-1)
        before = mx.cumsum(probs, axis=-1) - probs
        kept = in_k & ((before < p) | (mx.arange(vocab)[None] == 0))
        threshold = mx.min(mx.where(kept, descending, float("inf")), axis=-1, keepdims=True)
        return mx.where(x >= threshold, x, _NEVER)

    wanted = [row.sampling.top_p < 1 or row.sampling.top_k > 0 for row in rows]
    return _for_rows(logits, wanted, narrow)


def _add_logprobs(sampled: Sampled, logits: mx.array, rows: Sequence[Row]) -> None:
    """Add the log-probabilities of the chosen and of the likeliest tokens to `sampled`, for the
    rows that ask for them."""
    wanted = [(i, row.sampling.top_logprobs) for i, row in enumerate(rows)]
    asked = [(i, width) for i, width in wanted if width is not None]
    if not asked:
        return
    sampled.logprob_rows = [i for i, _ in asked]
    sampled.widths = [width for _, width in asked]
    at = mx.array(sampled.logprob_rows)
    x = logits[at]
    norm = mx.logsumexp(x, axis=-1, keepdims=True)
    tokens = sampled.tokens[at][:, None]
    sampled.chosen = (mx.take_along_axis(x, tokens, axis=-1) - norm)[:, 0]
    width = min(max(sampled.widths), x.shape[-1])
    if width:
        # Only the top leaves the step: a kept row of logits would pin the whole [B, V] buffer.
        sampled.top_ids, sampled.top_values = likeliest(x, norm, width)


def likeliest(logits: mx.array, norm: mx.array, count: int) -> tuple[mx.array, mx.array]:
    """Ids and log-probabilities [R, count] of the likeliest tokens, in descending order. `logits`
    are [R, V], `norm` [R, 1] is their logsumexp; `count` is at least 1 and at most V."""
    ids = mx.argpartition(-logits, count - 1, axis=-1)[:, :count]
    values = mx.take_along_axis(logits, ids, axis=-1) - norm
    order = mx.argsort(-values, axis=-1)
    return mx.take_along_axis(ids, order, axis=-1), mx.take_along_axis(values, order, axis=-1)


def _penalised(sampling: SamplingParams) -> bool:
    return (
        sampling.repetition_penalty != 1
        or sampling.presence_penalty != 0
        or sampling.frequency_penalty != 0
    )


def _scatter(vocab: int, values: Sequence[tuple[int, float]]) -> mx.array:
    """A vector [V] of zeros with some values set. Ids that the model does not have are left out:
    MLX checks no bounds."""
    known = [(id, value) for id, value in values if id < vocab]
    result = mx.zeros(vocab)
    if known:
        ids, floats = zip(*known, strict=True)
        result[mx.array(ids)] = mx.array(floats)
    return result
