"""Samples one token from logits for each row, or each state of a row that verifies a draft. A row's
result is the same in any batch. The order is vLLM's: log-probabilities of the raw logits;
logit_bias, penalties, banned stop tokens; the mask of a constraint; temperature; min_p; top_k;
top_p; then argmax(logits + Gumbel noise). A row's noise depends on its seed, choice and position.
The number of kernels does not grow with the rows."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import mlx.core as mx

from omlx_server.compute.hardware import device
from omlx_server.compute.sampling.logits import (
    History,
    Offsets,
    Table,
    allowed,
    allows,
    filtered,
    for_rows,
    has_penalties,
    shared_table,
    shifted,
    side_by_side,
)
from omlx_server.core.adapters import Adapter
from omlx_server.core.request import (
    NOT_FINITE,
    Constraint,
    Logprobs,
    SampledRow,
    SampledToken,
    SamplingParams,
)
from omlx_server.core.step import Join, SequenceId

_MINUS_INFINITY = float("-inf")


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
            row.banned = Offsets.of(dict.fromkeys(sampling.stop_ids, _MINUS_INFINITY), vocab)
        if join.constraint is not None:
            row.constraint = join.constraint.copy()
            for token in generated:
                row.constraint.take(token)
        return row

    @property
    def is_constrained(self) -> bool:
        constraint = self.constraint
        return constraint is not None and not (constraint.problem or constraint.done)

    def noise_key(self) -> tuple[int, int]:
        text = f"{self.sampling.seed}:{self.id.choice}:{self.position}".encode()
        digest = hashlib.blake2b(text, digest_size=8).digest()
        return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")

    def states_along(self, draft: Sequence[int]) -> "list[SamplingRow]":
        """Return the states before each sample: this row, then one per allowed drafted token."""
        states = [self]
        if self.constraint is not None and not self.constraint.takes_drafts:
            return states
        for token in draft:
            after = states[-1]._state_after(token) if token != NOT_FINITE else None
            if after is None:
                break
            states.append(after)
        return states

    def _state_after(self, token: int) -> "SamplingRow | None":
        """Return the state after the token; None where the answer can't go on."""
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
        after.count_sampled()
        return after

    def count_sampled(self) -> None:
        """Count a token, and lift the ban of stop tokens in time."""
        self.position += 1
        self.generated += 1
        if self.generated >= self.sampling.min_tokens:
            self.banned = None


def nbytes(rows: Sequence[SamplingRow]) -> int:
    """Return the bytes of the rows' penalty tables, which rows share."""
    tables = {row.history.table for row in rows if row.history is not None}
    return sum(table.entries.nbytes for table in tables)


@dataclass(slots=True, eq=False)
class Sampled:
    """Tokens and log-probabilities that a step sampled, on the device."""

    tokens: mx.array  # int32 [B]; NOT_FINITE where logits were NaN or infinite
    constraints: dict[int, Constraint] = field(default_factory=dict)
    logprob_rows: list[int] = field(default_factory=list)  # the W rows that want log-probabilities
    widths: list[int] = field(default_factory=list)  # [W], how many of the K likeliest each wants
    chosen: mx.array | None = None  # [W], log-probabilities of the sampled tokens
    top_ids: mx.array | None = None  # [W, K]
    top_values: mx.array | None = None  # [W, K]

    def arrays(self) -> list[mx.array]:
        candidates = (self.tokens, self.chosen, self.top_ids, self.top_values)
        return [array for array in candidates if array is not None]

    def to_host(self) -> list[SampledRow]:
        """Wait for the results and advance the constraints. Call it once."""
        tokens = self.tokens_on_host()
        return self.sampled_rows(range(len(tokens)), [[token] for token in tokens])

    def tokens_on_host(self) -> list[SampledToken]:
        tokens: list[int] = device.to_host(self.tokens)
        logprobs = self._logprobs_by_row()
        return [SampledToken(token, logprobs.get(row)) for row, token in enumerate(tokens)]

    def sampled_rows(
        self, places: Sequence[int], tokens: Sequence[Sequence[SampledToken]]
    ) -> list[SampledRow]:
        """Return a result for each answer and advance its constraint. The last of its new tokens
        tokens[i] was sampled in row places[i] of this step."""
        results = [SampledRow(tuple(own)) for own in tokens]
        constrained = [row for row, place in enumerate(places) if place in self.constraints]
        jobs = [
            partial(_advance_constraint, self.constraints[places[row]], results[row])
            for row in constrained
        ]
        for row, result in zip(constrained, side_by_side(jobs), strict=True):
            results[row] = result
        return results

    def _logprobs_by_row(self) -> dict[int, Logprobs]:
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
    with_offsets = [row.bias is not None or row.banned is not None for row in rows]
    scores = for_rows(logits, rows, with_offsets, _add_offsets)
    if table is not None:
        penalised = table.penalised
        with_history = [row.history is not None for row in rows]
        scores = for_rows(scores, rows, with_history, lambda x, _: penalised(x))
    masked = [row.constraint is not None and row.is_constrained for row in rows]
    scores = for_rows(scores, rows, masked, _mask_forbidden)
    scores = for_rows(scores, rows, [not row.greedy for row in rows], _add_noise)
    constraints = {i: row.constraint for i, row in enumerate(rows) if row.constraint is not None}
    best = mx.argmax(scores, axis=-1)
    sampled = Sampled(_or_not_finite(best, mx.sum(logits, axis=-1)), constraints)
    _add_logprobs(sampled, logits, rows)
    if table is not None:
        _note_in_histories(best.astype(mx.int32), rows, table)
    for row in rows:
        row.count_sampled()
    return sampled


@partial(mx.compile, shapeless=True)
def _or_not_finite(best: mx.array, logit_sum: mx.array) -> mx.array:
    # The likeliest of NaNs is token 0: without this an answer of "!!!!". -inf may be a mask.
    return mx.where(logit_sum < mx.inf, best.astype(mx.int32), NOT_FINITE)


def unsampled(logits: mx.array, rows: Sequence[SamplingRow]) -> Sampled:
    """Return zeros that depend on the logits, on a rank that does not sample."""
    for row in rows:
        row.count_sampled()
    return Sampled(mx.depends(mx.zeros(len(rows), dtype=mx.int32), logits))


def _note_in_histories(tokens: mx.array, rows: Sequence[SamplingRow], table: Table) -> None:
    numbers = [number for number, row in enumerate(rows) if row.history is not None]
    if len(numbers) < len(rows):
        tokens = tokens[mx.array(numbers)]
    new_table = table.after(tokens)
    for table_row, number in enumerate(numbers):
        row = rows[number]
        row.history = History(row.sampling, new_table, table_row)


def _add_offsets(logits: mx.array, rows: Sequence[SamplingRow]) -> mx.array:
    return shifted(logits, [(row.bias, row.banned) for row in rows])


def _mask_forbidden(logits: mx.array, rows: Sequence[SamplingRow]) -> mx.array:
    return allowed(logits, [row.constraint for row in rows if row.constraint is not None])


def _add_noise(logits: mx.array, rows: Sequence[SamplingRow]) -> mx.array:
    temperature = mx.array([[row.sampling.temperature] for row in rows])
    scaled = filtered(logits / temperature, [row.sampling for row in rows])
    keys = mx.array([row.noise_key() for row in rows], dtype=mx.uint32)
    vocab = logits.shape[-1]
    return scaled + mx.vmap(lambda key: mx.random.gumbel((vocab,), key=key))(keys)


def _advance_constraint(constraint: Constraint, row: SampledRow) -> SampledRow:
    if row.tokens[-1].id == NOT_FINITE:
        return row
    if not (constraint.problem or constraint.done):
        constraint.take(row.tokens[-1].id)
    done, problem = constraint.done, constraint.problem or ""
    costly = bool(problem) and constraint.too_costly
    forced = tuple(constraint.forced())
    return replace(row, done=done, forced=forced, problem=problem, too_costly=costly)


def _add_logprobs(sampled: Sampled, logits: mx.array, rows: Sequence[SamplingRow]) -> None:
    asked = [(number, row.sampling.top_logprobs) for number, row in enumerate(rows)]
    widths = [(number, width) for number, width in asked if width is not None]
    if not widths:
        return
    sampled.logprob_rows = [number for number, _ in widths]
    sampled.widths = [width for _, width in widths]
    numbers = mx.array(sampled.logprob_rows)
    row_logits = logits[numbers]
    norm = mx.logsumexp(row_logits, axis=-1, keepdims=True)
    tokens = sampled.tokens[numbers][:, None]
    sampled.chosen = (mx.take_along_axis(row_logits, tokens, axis=-1) - norm)[:, 0]
    most = min(max(sampled.widths), row_logits.shape[-1])
    if most:
        # Only the top leaves the step: a row of logits would keep the whole [B, V] buffer alive.
        sampled.top_ids, sampled.top_values = likeliest(row_logits, norm, most)


def likeliest(logits: mx.array, norm: mx.array, count: int) -> tuple[mx.array, mx.array]:
    """Return ids and log-probabilities [R, count], descending. `norm` [R, 1] is the logsumexp."""
    ids = mx.argpartition(-logits, count - 1, axis=-1)[:, :count]
    values = mx.take_along_axis(logits, ids, axis=-1) - norm
    order = mx.argsort(-values, axis=-1)
    return mx.take_along_axis(ids, order, axis=-1), mx.take_along_axis(values, order, axis=-1)
