"""Samples one token from logits for each row, or each state of a row that verifies a draft. A row's
result is the same in any batch.

The order is vLLM's: log-probabilities of the raw logits; logit_bias, penalties, banned stop tokens;
the mask of a constraint; temperature; min_p; top_k; top_p; then argmax(logits + Gumbel noise). A
row's noise depends on its seed, choice and position. The number of kernels does not grow with the
rows.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import mlx.core as mx

from omlx_server.compute.hardware import device
from omlx_server.compute.sampling.constraints import allowed, allows, side_by_side
from omlx_server.compute.sampling.filters import filtered, for_rows
from omlx_server.compute.sampling.penalties import (
    History,
    Offsets,
    Table,
    has_penalties,
    shared_table,
    shifted,
)
from omlx_server.core.adapters import Adapter
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
class SamplingRow:
    """Sampling state of one live row. `position` counts the tokens before the next; images
    `shift` it for the model. Stop tokens are `banned` until min_tokens."""

    id: SequenceId
    sampling: SamplingParams
    position: int
    generated: int
    greedy: bool
    bias: Offsets | None = None
    banned: Offsets | None = None
    history: History | None = None
    constraint: Constraint | None = None
    shift: int = 0
    adapter: Adapter | None = None

    @classmethod
    def of(cls, join: Join, vocab: int) -> "SamplingRow":
        sampling = join.sampling
        generated = join.context[join.prompt_tokens :]
        row = cls(join.id, sampling, len(join.context), len(generated), sampling.greedy)
        row.shift, row.adapter = join.shift, join.adapter
        row.bias = Offsets.of(dict(sampling.logit_bias), vocab)
        if has_penalties(sampling):
            prompt = join.context[: join.prompt_tokens]
            row.history = History.of(sampling, prompt, generated, vocab)
        if sampling.min_tokens > len(generated):
            row.banned = Offsets.of(dict.fromkeys(sampling.stop_ids, _NEVER), vocab)
        if join.constraint is not None:
            row.constraint = join.constraint.copy()
            for token in generated:
                row.constraint.take(token)
        return row

    @property
    def constrained(self) -> bool:
        constraint = self.constraint
        return constraint is not None and not (constraint.problem or constraint.done)

    def key(self) -> tuple[int, int]:
        sampling = self.sampling
        text = f"{sampling.seed}:{self.id.choice}:{self.position}".encode()
        digest = hashlib.blake2b(text, digest_size=8).digest()
        return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")

    def ahead(self, draft: Sequence[int]) -> "list[SamplingRow]":
        """Return the states before each sample: this row, then one per allowed drafted token."""
        if self.constraint is not None and not self.constraint.takes_drafts:
            return [self]
        states = [self]
        for token in draft:
            after = states[-1]._behind(token)
            if after is None:
                break
            states.append(after)
        return states

    def _behind(self, token: int) -> "SamplingRow | None":
        """None where the answer can't go on after the token."""
        constraint = self.constraint
        if constraint is not None:
            if constraint.problem or not allows(constraint.mask(), token):
                return None
            constraint = constraint.copy()
            constraint.take(token)
            if constraint.problem or constraint.done:
                return None
        history = self.history.after(token) if self.history is not None else None
        after = replace(self, constraint=constraint, history=history)
        after.took()
        return after

    def took(self) -> None:
        self.position += 1
        self.generated += 1
        if self.generated >= self.sampling.min_tokens:
            self.banned = None


def nbytes(rows: Sequence[SamplingRow]) -> int:
    tables = {row.history.table for row in rows if row.history is not None}
    return sum(table.entries.nbytes for table in tables)


@dataclass(slots=True, eq=False)
class Sampled:
    """A step's sampled tokens int32 [B], on the device. W rows, `logprob_rows`, want
    log-probabilities: `chosen` [W], `top_ids` and `top_values` [W, K]."""

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
        """Wait for the results and advance the constraints. Call it once."""
        tokens = self.on_host()
        return self.outcomes(range(len(tokens)), [[token] for token in tokens])

    def on_host(self) -> list[SampledToken]:
        tokens: list[int] = device.to_host(self.tokens)
        logprobs = self._logprobs()
        return [SampledToken(token, logprobs.get(row)) for row, token in enumerate(tokens)]

    def outcomes(
        self, places: Sequence[int], tokens: Sequence[Sequence[SampledToken]]
    ) -> list[SampledRow]:
        """Return results of tokens[i], the last sampled in places[i], and advance the
        constraints."""
        outcomes = [SampledRow(tuple(own)) for own in tokens]
        constrained = [at for at, place in enumerate(places) if place in self.constraints]
        work = [partial(_advance, self.constraints[places[at]], outcomes[at]) for at in constrained]
        for at, outcome in zip(constrained, side_by_side(work), strict=True):
            outcomes[at] = outcome
        return outcomes

    def _logprobs(self) -> dict[int, Logprobs]:
        if self.chosen is None:
            return {}
        chosen: list[float] = device.to_host(self.chosen)
        count = len(chosen)
        ids: list[list[int]] = [[]] * count
        values: list[list[float]] = [[]] * count
        if self.top_ids is not None and self.top_values is not None:
            ids, values = device.to_host(self.top_ids), device.to_host(self.top_values)
        return {
            row: Logprobs(chosen[i], tuple(zip(ids[i][:width], values[i][:width], strict=True)))
            for i, (row, width) in enumerate(zip(self.logprob_rows, self.widths, strict=True))
        }


def sample(logits: mx.array, rows: Sequence[SamplingRow]) -> Sampled:
    """Choose a token for each row of `logits` [B, V], and note it. Launches nothing."""
    logits = logits.astype(mx.float32)
    histories = [row.history for row in rows if row.history is not None]
    table = shared_table(histories) if histories else None
    shifting = [row.bias is not None or row.banned is not None for row in rows]
    scores = for_rows(logits, rows, shifting, _shift)
    if table is not None:
        penalised = table.penalised
        counting = [row.history is not None for row in rows]
        scores = for_rows(scores, rows, counting, lambda x, _: penalised(x))
    masked = [row.constraint is not None and row.constrained for row in rows]
    scores = for_rows(scores, rows, masked, _mask)
    scores = for_rows(scores, rows, [not row.greedy for row in rows], _noisy)
    constraints = {i: row.constraint for i, row in enumerate(rows) if row.constraint is not None}
    sampled = Sampled(mx.argmax(scores, axis=-1).astype(mx.int32), constraints)
    _add_logprobs(sampled, logits, rows)
    if table is not None:
        _note(sampled.tokens, rows, table)
    for row in rows:
        row.took()
    return sampled


def unsampled(logits: mx.array, rows: Sequence[SamplingRow]) -> Sampled:
    """Return zeros that depend on the logits, on a rank that does not sample."""
    for row in rows:
        row.took()
    return Sampled(mx.depends(mx.zeros(len(rows), dtype=mx.int32), logits))


def _note(tokens: mx.array, rows: Sequence[SamplingRow], table: Table) -> None:
    places = [i for i, row in enumerate(rows) if row.history is not None]
    if len(places) < len(rows):
        tokens = tokens[mx.array(places)]
    after = table.after(tokens)
    for at, place in enumerate(places):
        row = rows[place]
        row.history = History(row.sampling, after, at)


def _shift(logits: mx.array, rows: Sequence[SamplingRow]) -> mx.array:
    return shifted(logits, [(row.bias, row.banned) for row in rows])


def _mask(logits: mx.array, rows: Sequence[SamplingRow]) -> mx.array:
    return allowed(logits, [row.constraint for row in rows if row.constraint is not None])


def _noisy(logits: mx.array, rows: Sequence[SamplingRow]) -> mx.array:
    temperature = mx.array([[row.sampling.temperature] for row in rows])
    scaled = filtered(logits / temperature, [row.sampling for row in rows])
    keys = mx.array([row.key() for row in rows], dtype=mx.uint32)
    vocab = logits.shape[-1]
    return scaled + mx.vmap(lambda key: mx.random.gumbel((vocab,), key=key))(keys)


def _advance(constraint: Constraint, outcome: SampledRow) -> SampledRow:
    if not (constraint.problem or constraint.done):
        constraint.take(outcome.tokens[-1].id)
    done, problem = constraint.done, constraint.problem or ""
    costly = bool(problem) and constraint.too_costly
    forced = tuple(constraint.forced())
    return replace(outcome, done=done, forced=forced, problem=problem, too_costly=costly)


def _add_logprobs(sampled: Sampled, logits: mx.array, rows: Sequence[SamplingRow]) -> None:
    wanted = [(i, row.sampling.top_logprobs) for i, row in enumerate(rows)]
    widths = [(i, width) for i, width in wanted if width is not None]
    if not widths:
        return
    sampled.logprob_rows = [i for i, _ in widths]
    sampled.widths = [width for _, width in widths]
    at = mx.array(sampled.logprob_rows)
    x = logits[at]
    norm = mx.logsumexp(x, axis=-1, keepdims=True)
    tokens = sampled.tokens[at][:, None]
    sampled.chosen = (mx.take_along_axis(x, tokens, axis=-1) - norm)[:, 0]
    width = min(max(sampled.widths), x.shape[-1])
    if width:
        # Only the top leaves the step: a row of logits would keep the whole [B, V] buffer alive.
        sampled.top_ids, sampled.top_values = likeliest(x, norm, width)


def likeliest(logits: mx.array, norm: mx.array, count: int) -> tuple[mx.array, mx.array]:
    """Return ids and log-probabilities [R, count], descending. `norm` [R, 1] is the logits'
    logsumexp."""
    ids = mx.argpartition(-logits, count - 1, axis=-1)[:, :count]
    values = mx.take_along_axis(logits, ids, axis=-1) - norm
    order = mx.argsort(-values, axis=-1)
    return mx.take_along_axis(ids, order, axis=-1), mx.take_along_axis(values, order, axis=-1)
