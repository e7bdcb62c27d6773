"""What the engines say of themselves, as metrics: read when somebody asks for them.

What vLLM has too is told of each model, under its names; the sum over them is that of the server.
What only we have is of all models together, as they share the tiers and the memory.
"""

import time
from collections.abc import Iterator, Mapping, Sequence

from prometheus_client.core import Metric

from omlx_server.api.families import (
    MODEL,
    OWN,
    by_model,
    counter,
    counters,
    gauge,
    gauges,
    label_of,
    sums,
)
from omlx_server.api.metrics.account import account_of
from omlx_server.api.metrics.memory import memory_families
from omlx_server.api.models.served import ServedModels
from omlx_server.api.response_store.store import Store
from omlx_server.core.cold.index import ColdReport
from omlx_server.core.prefix_cache.report import CacheReport
from omlx_server.core.scheduler.limits import Load
from omlx_server.core.scheduler.order import SIZES
from omlx_server.engine.messages import Counted

_NO_LOAD = Load(0, 0, 0)


class EngineMetrics:
    """A collector over the engines' own snapshots. `shared` is what the names begin with that vLLM
    has. A model that was loaded once is told of until the server ends."""

    def __init__(self, models: ServedModels, shared: str, responses: Store) -> None:
        self._models = models
        self._responses = responses
        self._shared = shared

    @property
    def names(self) -> list[str]:
        """The models that there is something to tell of."""
        return list(dict.fromkeys((*self._models.vitals.counted, *self._loads)))

    @property
    def _loads(self) -> dict[str, Load]:
        return {name: status.load for name, status in self._models.engines()}

    def describe(self) -> Iterator[Metric]:
        return iter(())

    def collect(self) -> Iterator[Metric]:
        vitals, shared = self._models.vitals, self._shared
        counted, loads = vitals.counted, self._loads
        caches = [one.cache for one in counted.values()]
        cold = vitals.cold
        yield from _at_work({name: loads.get(name, _NO_LOAD) for name in self.names}, shared)
        yield self._oldest()
        yield from _prefixes(counted, shared)
        yield _stalls(counted)
        yield from _kept(caches, cold)
        yield from _moved(caches, cold)
        yield from _traffic(cold)
        yield from memory_families(account_of(self._models, self._responses))

    def _oldest(self) -> Metric:
        now = time.monotonic()
        ages = {(label_of(name), size): 0.0 for name in self.names for size in SIZES}
        for name, status in self._models.engines():
            for size, arrived in status.oldest.items():
                ages[label_of(name), size] = max(0.0, now - arrived)
        return gauges(
            f"{OWN}oldest_waiting_seconds",
            "Seconds that the oldest request in the queue has waited, by the size of its prompt: "
            "short (a chunk to read), medium (up to eight) or long. 0 where none waits.",
            (MODEL, "size"),
            ages,
        )


def _at_work(loads: Mapping[str, Load], shared: str) -> Iterator[Metric]:
    running = {name: load.running + load.prefilling for name, load in loads.items()}
    yield gauges(
        f"{shared}num_requests_running",
        "Sequences at work: their prompts are read, or their answers written.",
        (MODEL,),
        by_model(running),
    )
    yield gauges(
        f"{shared}num_requests_waiting",
        "Sequences in the queue.",
        (MODEL,),
        by_model({name: load.waiting for name, load in loads.items()}),
    )


def _prefixes(counted: Mapping[str, Counted], shared: str) -> Iterator[Metric]:
    """What was looked up and found, and who had to give way."""
    caches = {name: one.cache for name, one in counted.items()}
    budget = _budget(list(caches.values()))
    yield gauges(
        f"{shared}kv_cache_usage_perc",
        "Share of the hot tier that the model's blocks take, from 0 to 1. All models share that "
        "tier, so the sum over them is how full it is.",
        (MODEL,),
        by_model({name: c.nbytes / budget if budget else 0 for name, c in caches.items()}),
    )
    yield counters(
        f"{shared}prefix_cache_queries",
        "Prompt tokens that were looked up in the prefix cache.",
        (MODEL,),
        by_model({name: cache.queried_tokens for name, cache in caches.items()}),
    )
    yield counters(
        f"{shared}prefix_cache_hits",
        "Prompt tokens that the prefix cache had, so that they were not computed again.",
        (MODEL,),
        by_model({name: cache.hit_tokens for name, cache in caches.items()}),
    )
    yield counters(
        f"{shared}num_preemptions",
        "Sequences that went back to the queue because memory was short.",
        (MODEL,),
        by_model({name: one.preempted for name, one in counted.items()}),
    )


def _stalls(counted: Mapping[str, Counted]) -> Metric:
    values: dict[tuple[str, str], float] = {}
    for name, one in counted.items():
        values[label_of(name), "restarted"] = one.stalls.restarted
        values[label_of(name), "ended"] = one.stalls.ended
    return counters(
        "omlx_stalls",
        "Times that requests waited for 10 s and more while nothing was under way, by what was "
        "done: the scheduler was restarted with them, or they were ended with an error.",
        (MODEL, "outcome"),
        values,
    )


def _kept(caches: Sequence[CacheReport], cold: ColdReport | None) -> Iterator[Metric]:
    """What each tier holds and may hold. A file of the cold tier is a block or a checkpoint; which
    one only its header knows."""
    states = sum(c.checkpoint_bytes for c in caches)
    nbytes = {
        ("hot", "blocks"): sum(c.nbytes for c in caches) - states,
        ("hot", "checkpoints"): states,
    }
    count = {
        ("hot", "blocks"): sum(c.blocks for c in caches),
        ("hot", "checkpoints"): sum(c.checkpoints for c in caches),
    }
    budget = {("hot",): _budget(caches)}
    if cold is not None:
        nbytes["cold", "files"] = cold.nbytes
        count["cold", "files"] = cold.blocks
        budget["cold",] = cold.budget
    kinds = ("tier", "kind")
    yield gauges("omlx_cache_bytes", "Bytes that a tier holds, by what they are.", kinds, nbytes)
    yield gauges("omlx_cache_blocks", "What a tier holds, in pieces, by kind.", kinds, count)
    yield gauges("omlx_cache_budget_bytes", "Bytes that a tier may hold.", ("tier",), budget)


def _moved(caches: Sequence[CacheReport], cold: ColdReport | None) -> Iterator[Metric]:
    """Why prompts were computed, and what each tier has dropped and given."""
    from_cold = sum(c.cold_hit_tokens for c in caches)
    hit = {("hot",): sum(c.hit_tokens for c in caches) - from_cold}
    evicted = {
        ("hot", "block_budget"): sum(c.evicted_blocks for c in caches),
        ("hot", "checkpoint_budget"): sum(c.evicted_checkpoints for c in caches),
    }
    if cold is not None:
        hit["cold",] = from_cold
        evicted["cold", "budget_or_age"] = cold.evicted
    misses = sums(pair for c in caches for pair in c.misses if pair[0] != "none")
    yield counters(
        "omlx_cache_misses",
        "Prompts of which the cache did not have all that it might, by the reason.",
        ("reason",),
        misses,
    )
    yield counters(
        "omlx_cache_evictions",
        "Blocks and checkpoints that a tier has dropped, by what was short.",
        ("tier", "reason"),
        evicted,
    )
    yield counters(
        "omlx_cache_hit_tokens",
        "Prompt tokens that were not computed again, by the tier that had them.",
        ("tier",),
        hit,
    )


def _traffic(cold: ColdReport | None) -> Iterator[Metric]:
    """What goes to the cold tier and comes from it; nothing when there is none."""
    if cold is None:
        return
    for name, text, value in (
        ("written_bytes", "Bytes that were written to the cold tier.", cold.written_bytes),
        ("read_bytes", "Bytes that were read from the cold tier.", cold.read_bytes),
        ("written_blocks", "Blocks that were written to the cold tier.", cold.written),
        ("read_blocks", "Blocks that were read from the cold tier.", cold.read),
    ):
        yield counter(f"omlx_cache_{name}", text, value)
    waiting = "Bytes in memory that wait to be written to the cold tier."
    yield gauge("omlx_cache_write_queue_bytes", waiting, cold.queued)
    for name, text, why in (
        ("dropped", "Blocks that were not written to the cold tier, by the reason.", cold.dropped),
        ("read_failures", "Reads of the cold tier that failed, by the reason.", cold.failed),
    ):
        yield counters(f"omlx_cache_{name}", text, ("reason",), sums(why))


def _budget(caches: Sequence[CacheReport]) -> int:
    """All models share one."""
    return max((c.budget for c in caches), default=0)
