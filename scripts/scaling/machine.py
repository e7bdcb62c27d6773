"""One server: a real prefix cache, prompts that wait or are prefilled in chunks, rows that decode.

The scheduler's rules, without its steps: short, medium and long prompts share the time for prompts,
chunks go before rows but leave them their share of the time, and all rows decode together. Between
two chunks or two ends of rows all steps are alike, so they are one event.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from omlx_server.core.blocks.block import BlockPlace, Size
from omlx_server.core.blocks.cache_layout import CacheLayout, LayerKind
from omlx_server.core.blocks.keys import block_key
from omlx_server.core.blocks.lookup import BlocksInUse, PrefixHandle
from omlx_server.core.blocks.record import Record
from omlx_server.core.prefix_cache.eviction import HotBudget
from omlx_server.core.prefix_cache.prefix_cache import PrefixCache
from scripts.scaling.assumptions import Assumptions, Scale
from scripts.scaling.cold import Cold
from scripts.scaling.events import Events
from scripts.scaling.store import SharedStore
from scripts.scaling.traffic import Request

_SALT = b""
_SHARES = (0.5, 0.25, 0.25)
_CHUNKS = (1, 8)
"""Chunks that are left of a short prompt and of a medium one, at most, as in
`core/scheduler/order.py`."""


@dataclass(slots=True, eq=False)
class Prompt:
    """A request on its way: `done` simulated tokens of its prompt are restored or computed."""

    request: Request
    handle: PrefixHandle
    done: int = 0
    begun: bool = False

    @property
    def left(self) -> int:
        """How many tokens are left to compute, as far as that is known."""
        handle = self.handle
        return len(handle.tokens) - (
            self.done if self.begun else max(handle.known, handle.promoted)
        )


@dataclass(slots=True, eq=False)
class Row:
    """An answer that is being decoded: tokens that are left, and blocks that it refers to."""

    request: Request
    handle: PrefixHandle
    blocks: BlocksInUse
    left: int


@dataclass(slots=True)
class Turns:
    """Gives each size of prompts its share of the time. Time that a size did not want is not saved
    up for it."""

    _used: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    _waiting: frozenset[int] = frozenset()

    def order(self, sizes: frozenset[int]) -> list[int]:
        """The sizes that wait now, in the order of their turns."""
        least = min((self._used[size] for size in sizes & self._waiting), default=0.0)
        for size in sizes - self._waiting:
            self._used[size] = max(self._used[size], least)
        self._waiting = sizes
        return sorted(sizes, key=lambda size: (self._used[size], size))

    def took(self, size: int, seconds: float) -> None:
        self._used[size] += seconds / _SHARES[size]


class Server:
    """A machine of the fleet. `answered` is called with each request after its last token."""

    def __init__(
        self,
        events: Events,
        assumed: Assumptions,
        scale: Scale,
        *,
        has_cold: bool,
        store: SharedStore | None,
        writes_through: bool,
        answered: Callable[[Request], None],
    ) -> None:
        self._events, self._scale, self._answered = events, scale, answered
        self._machine = assumed.machine
        self._writes_through = writes_through
        self._token_bytes = assumed.machine.kv_bytes_per_token * scale.unit
        self._chunk = max(1, assumed.machine.chunk // scale.unit)
        layout = CacheLayout(frozenset({LayerKind.DELTA}), scale.block // scale.unit, refers=True)
        self.cold: Cold | None = None
        if has_cold:
            self.cold = Cold(events, self._machine, store, self._size_of, self._wake)
        index = self.cold.index if self.cold is not None else None
        self.cache = PrefixCache(layout, "model", HotBudget(self._machine.room_bytes, 0), index)
        if self.cold is not None:
            self.cold.follow(self.cache)
        self.computed = 0
        """Simulated tokens of prompts that were computed."""
        self.busy_seconds = 0.0
        self._prompts: list[Prompt] = []
        self._rows: list[Row] = []
        self._turns = Turns()
        self._phase = 0
        self._works = False
        self._decodes_since: float | None = None

    def take(self, request: Request) -> None:
        """Queue a request."""
        handle = self.cache.enter(request.tokens, _SALT, ())
        self._prompts.append(Prompt(request, handle))
        if self.cold is not None:
            self.cold.request()
        self._wake()

    # -- what runs next ------------------------------------------------------------------

    def _wake(self) -> None:
        """Something has changed: begin a chunk, or let rows decode until the next change."""
        if self._works:
            return
        self._settle()
        prompt = self._next_prompt()
        if prompt is not None:
            self._begin_chunk(prompt)
        elif self._rows:
            self._begin_decode()

    def _next_prompt(self) -> Prompt | None:
        ready: dict[int, list[Prompt]] = {}
        for prompt in self._prompts:
            ready.setdefault(self._size_class(prompt), []).append(prompt)
        for size in self._turns.order(frozenset(ready)):
            for prompt in ready[size]:
                if prompt.begun or self._begins(prompt):
                    return prompt
        return None

    def _size_class(self, prompt: Prompt) -> int:
        chunks = -(-prompt.left // self._chunk)
        return next((n for n, most in enumerate(_CHUNKS) if chunks <= most), len(_CHUNKS))

    def _begins(self, prompt: Prompt) -> bool:
        """Admit a prompt, if it waits for nobody and there is room for it."""
        handle, request = prompt.handle, prompt.request
        at_work = len(self._rows) + sum(other.begun for other in self._prompts)
        if at_work >= self._machine.rows or self.cache.must_wait(handle):
            return False
        total = len(handle.tokens) + len(request.answer.tokens)
        used, fresh = self.cache.use_of(handle, total)
        needed = (total - used + self._coming()) * self._token_bytes + fresh
        if at_work and self.cache.index.in_use + needed > self._machine.room_bytes:
            return False
        lookup = self.cache.admit(handle)
        prompt.begun, prompt.done = True, lookup.cached
        request.cached = lookup.cached
        request.cold = max(0, min(lookup.cached, handle.promoted) - handle.known)
        self._shrink()
        return True

    def _coming(self) -> int:
        """How many simulated tokens those at work have still to compute."""
        begun = [prompt for prompt in self._prompts if prompt.begun]
        requests = [prompt.request for prompt in begun] + [row.request for row in self._rows]
        answers = sum(len(request.answer.tokens) for request in requests)
        return answers + sum(prompt.left for prompt in begun)

    # -- prompts -------------------------------------------------------------------------

    def _begin_chunk(self, prompt: Prompt) -> None:
        start, unit = prompt.done, self._scale.unit
        stop = prompt.handle.next_stop(start, self._chunk) if prompt.left > 0 else start
        seconds = self._machine.prefill_seconds(start * unit, stop * unit)
        if stop > start:
            least = 16  # tokens: a rate of fewer is not noted, and simulated tokens are few
            self.cache.read_ahead.rates.computed(least, least * seconds / (stop - start))
        size = self._size_class(prompt)
        self._turns.took(size, seconds)
        decoding = 0.0
        if self._rows:
            step = self._step_seconds()
            share = self._machine.decode_share
            steps = max(1, round(seconds * share / (1 - share) / step)) if seconds else 0
            decoding = steps * step
            for row in self._rows:
                row.left -= min(steps, row.left - 1)
        self._works = True
        self.busy_seconds += seconds + decoding
        self._events.after(seconds + decoding, lambda: self._end_chunk(prompt, stop))

    def _end_chunk(self, prompt: Prompt, stop: int) -> None:
        start, handle = prompt.done, prompt.handle
        self._works, prompt.done = False, stop
        self.computed += stop - start
        self._store(handle, start, stop)
        if stop == len(handle.tokens):
            self._prompts.remove(prompt)
            self._join(prompt)
        self._wake()

    def _join(self, prompt: Prompt) -> None:
        request = prompt.request
        blocks = self.cache.uses.share(prompt.handle.blocks)
        self.cache.leave(prompt.handle)
        self._rows.append(Row(request, prompt.handle, blocks, request.answer_tokens))
        request.first_token = self._events.now + self._step_seconds() - request.arrived

    def _store(self, handle: PrefixHandle, start: int, stop: int) -> None:
        """Cut a chunk into blocks, as the runner does."""
        size, records = self.cache.layout.block_size, list[Record]()
        for cut in self.cache.cutter.of_chunk(handle, start, stop, None):
            first = cut.start // size
            parent = handle.keys[first - 1] if first else handle.root
            place = BlockPlace(parent, cut.start, handle.tokens[cut.start : cut.stop])
            self._keep(place, records, handle.blocks)
        self._write(records)

    def _keep(self, place: BlockPlace, records: list[Record], *users: BlocksInUse) -> None:
        nbytes = len(place.own) * self._token_bytes
        id = self.cache.store_block(place, Size(nbytes, 1), users)
        if id is not None and self.cold is not None and self._writes_through:
            records.append(
                Record(self.cache.namespace, place.parent, place.start, tuple(place.own))
            )

    # -- rows ----------------------------------------------------------------------------

    def _step_seconds(self) -> float:
        contexts = sum(len(r.handle.tokens) for r in self._rows) * self._scale.unit
        return self._machine.decode_seconds(contexts)

    def _begin_decode(self) -> None:
        """Decode until the first row ends, unless something comes before."""
        self._phase += 1
        phase, self._decodes_since = self._phase, self._events.now
        seconds = min(row.left for row in self._rows) * self._step_seconds()

        def ended() -> None:
            if phase == self._phase:
                self._wake()

        self._events.after(seconds, ended)

    def _settle(self) -> None:
        """Take in the tokens since the rows began to decode, and end rows that have all."""
        since, self._decodes_since = self._decodes_since, None
        if since is None:
            return
        self._phase += 1
        step, elapsed = self._step_seconds(), self._events.now - since
        self.busy_seconds += elapsed
        steps = int(elapsed / step + 0.001)
        for row in self._rows:
            row.left -= steps
        for row in [row for row in self._rows if row.left <= 0]:
            self._rows.remove(row)
            self._end(row)

    def _end(self, row: Row) -> None:
        """Keep the blocks of an answer, and let go of those that its row used."""
        handle, records = row.handle, list[Record]()
        tokens, size = (*handle.tokens, *row.request.answer.tokens), self.cache.layout.block_size
        first = len(handle.tokens) // size
        parent = handle.keys[first - 1] if first else handle.root
        for start in range(first * size, len(tokens), size):
            own = tokens[start : start + size]
            self._keep(BlockPlace(parent, start, own), records)
            parent = block_key(parent, own)
        # What it used becomes idle, and has the room that it had: `_shrink` sets the bound anew.
        self.cache.budget = HotBudget(self._machine.room_bytes, 0)
        self.cache.uses.end(row.blocks)
        self._write(records)
        # By an event, since the next request may come to this machine.
        self._events.after(0.0, partial(self._answered, row.request))

    # -- memory --------------------------------------------------------------------------

    def _size_of(self, record: Record) -> Size:
        return Size(len(record.tokens) * self._token_bytes, 1)

    def _write(self, records: list[Record]) -> None:
        self._shrink()
        if records and self.cold is not None:
            self.cold.write(records)

    def _shrink(self) -> None:
        """Blocks that nobody uses have what those in use leave; what goes is for the cold tier.
        Where prompts that wait hold too much, the newest of them let go of it."""
        cache, room = self.cache, self._machine.room_bytes
        cache.budget = HotBudget(max(0, room - cache.index.in_use), 0)
        waiting = [prompt for prompt in self._prompts if not prompt.begun]
        while cache.index.nbytes > room and waiting:
            cache.let_go(waiting.pop().handle)
            cache.eviction.shrink()
        if cache.eviction.has_evicted:
            demoted = cache.take_demoted()
            cache.eviction.take_evicted()
            if self.cold is not None:
                self.cold.write(record for _, record in demoted)
