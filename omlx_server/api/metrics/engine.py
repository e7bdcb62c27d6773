"""Metrics of the engine, of loaded models and their texts, read from snapshots. vLLM's metrics are
for each model, those of cache tiers and memory for all together."""

import platform
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from omlx_server import __version__, clock
from omlx_server.api.metric_helpers import (
    MODEL,
    OWN,
    counters,
    gauges,
    label_of,
    model_counters,
    model_gauges,
    sums,
)
from omlx_server.api.metrics.traffic import Traffic
from omlx_server.api.models.served import ServedModels
from omlx_server.api.models.served_model import Served, ServedModel, role_of
from omlx_server.api.response_store.store import ResponseStore
from omlx_server.core.cold.index import ColdReport
from omlx_server.core.device_errors import DeviceFault
from omlx_server.core.memory.guard import Relief
from omlx_server.core.memory.ledger import MemoryReport
from omlx_server.core.prefix_cache.report import CacheReport
from omlx_server.core.scheduler.limits import Load
from omlx_server.core.scheduler.order import SIZES
from omlx_server.core.speculation.methods import Method
from omlx_server.engine.messages import Counted
from omlx_server.text.encoding.encoder import Characters
from omlx_server.text.tokenizer import Tokenizer

_NO_LOAD = Load(0, 0, 0)


def metrics_of_models(caches: Mapping[str, CacheReport], vllm_prefix: str) -> Iterator[Metric]:
    budget = _hot_budget(list(caches.values()))
    usage = {
        name: (cache.nbytes - cache.in_use) / budget if budget else 0.0
        for name, cache in caches.items()
    }
    yield model_gauges(
        f"{vllm_prefix}kv_cache_usage_perc",
        "Share of the hot tier that the model's blocks take, from 0 to 1, without those that "
        "sequences at work use. All models share that tier, so the sum over them is how full it "
        "is.",
        usage,
    )
    yield model_counters(
        f"{vllm_prefix}prefix_cache_queries",
        "Prompt tokens that were looked up in the prefix cache.",
        {name: cache.queried_tokens for name, cache in caches.items()},
    )
    yield model_counters(
        f"{vllm_prefix}prefix_cache_hits",
        "Prompt tokens that the prefix cache had, so that they were not computed again.",
        {name: cache.hit_tokens for name, cache in caches.items()},
    )


def metrics_of_tiers(caches: Sequence[CacheReport], cold: ColdReport | None) -> Iterator[Metric]:
    yield from _held_metrics(caches, cold)
    yield from _lookup_metrics(caches, cold)
    yield from _cold_traffic_metrics(cold)


def _held_metrics(caches: Sequence[CacheReport], cold: ColdReport | None) -> Iterator[Metric]:
    """Yield what each tier holds and may hold. Blocks and checkpoints of the cold tier are counted
    together, as only the headers of files tell them apart."""
    checkpoint_bytes = sum(cache.checkpoint_bytes for cache in caches)
    nbytes = {
        ("hot", "blocks"): sum(cache.nbytes for cache in caches) - checkpoint_bytes,
        ("hot", "checkpoints"): checkpoint_bytes,
    }
    count = {
        ("hot", "blocks"): sum(cache.blocks for cache in caches),
        ("hot", "checkpoints"): sum(cache.checkpoints for cache in caches),
    }
    budget = {("hot",): _hot_budget(caches)}
    if cold is not None:
        nbytes["cold", "files"] = cold.nbytes
        count["cold", "files"] = cold.blocks
        budget["cold",] = cold.budget
    kinds = ("tier", "kind")
    yield gauges("omlx_cache_bytes", "Bytes that a tier holds, by what they are.", kinds, nbytes)
    yield gauges("omlx_cache_blocks", "What a tier holds, in pieces, by kind.", kinds, count)
    yield gauges("omlx_cache_budget_bytes", "Bytes that a tier may hold.", ("tier",), budget)


def _lookup_metrics(caches: Sequence[CacheReport], cold: ColdReport | None) -> Iterator[Metric]:
    from_cold = sum(cache.cold_hit_tokens for cache in caches)
    hit = {("hot",): sum(cache.hit_tokens for cache in caches) - from_cold}
    evicted = {
        ("hot", "block_budget"): sum(cache.evicted_blocks for cache in caches),
        ("hot", "checkpoint_budget"): sum(cache.evicted_checkpoints for cache in caches),
    }
    if cold is not None:
        hit["cold",] = from_cold
        evicted["cold", "budget_or_age"] = cold.evicted
    misses = sums(pair for cache in caches for pair in cache.misses.items() if pair[0] != "none")
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


def _cold_traffic_metrics(cold: ColdReport | None) -> Iterator[Metric]:
    if cold is None:
        return
    for name, text, value in (
        ("written_bytes", "Bytes that were written to the cold tier.", cold.written_bytes),
        ("read_bytes", "Bytes that were read from the cold tier.", cold.read_bytes),
        ("written_blocks", "Blocks that were written to the cold tier.", cold.written),
        ("read_blocks", "Blocks that were read from the cold tier.", cold.read),
    ):
        yield CounterMetricFamily(f"omlx_cache_{name}", text, value=value)
    for name, text, value in (
        ("write_queue", "Bytes in memory that wait to be written to the cold tier.", cold.queued),
        ("written_today", "Bytes written to the files of blocks today.", cold.written_today),
        ("daily_writes", "Bytes that may be written in a day; 0: no limit.", cold.daily_bytes),
    ):
        yield GaugeMetricFamily(f"omlx_cache_{name}_bytes", text, value=value)
    for name, text, counts_by_reason in (
        ("dropped", "Blocks that were not written to the cold tier, by the reason.", cold.dropped),
        ("read_failures", "Reads of the cold tier that failed, by the reason.", cold.failed),
    ):
        yield counters(f"omlx_cache_{name}", text, ("reason",), sums(counts_by_reason.items()))


def _hot_budget(caches: Sequence[CacheReport]) -> int:
    """Return the bytes of the hot tier, which all models share."""
    return max((cache.budget for cache in caches), default=0)


class EngineMetrics:
    """A collector over the engine's snapshots. A model has metrics from its first load on."""

    def __init__(
        self, models: ServedModels, vllm_prefix: str, responses: ResponseStore, traffic: Traffic
    ) -> None:
        self._models = models
        self._responses = responses
        self._traffic = traffic
        self._vllm_prefix = vllm_prefix
        self._texts = _TextMetrics()
        self._loaded = _LoadedModels()
        self._build = _build_info_metric()

    @property
    def names(self) -> list[str]:
        engines = [name for name, _ in self._models.engines()]
        return list(dict.fromkeys((*self._models.vitals.counted, *engines)))

    def collect(self) -> Iterator[Metric]:
        vitals, vllm_prefix = self._models.vitals, self._vllm_prefix
        counted, device_errors = vitals.counted, vitals.device_errors
        loads = dict.fromkeys(self.names, _NO_LOAD)
        loads |= {name: status.load for name, status in self._models.engines()}
        caches = {name: counts.cache for name, counts in counted.items()}
        yield self._build
        yield self._loaded.metric(self._models.pool.loaded())
        yield from _queue_metrics(loads, vllm_prefix)
        yield self._oldest_waiting_metric()
        yield from metrics_of_models(caches, vllm_prefix)
        yield from _model_counters(counted, vllm_prefix)
        yield _stall_metric(counted)
        yield counters(
            "omlx_device_errors",
            "Failures that the GPU reported, by class (docs/trouble.md).",
            ("class",),
            {(fault.value,): device_errors.get(fault, 0) for fault in DeviceFault},
        )
        yield from _draft_metrics(counted)
        yield from _expert_metrics(counted)
        yield self._texts.metric(self.names, self._models.loaded())
        yield from metrics_of_tiers(list(caches.values()), vitals.cold)
        report = memory_report_of(self._models, self._responses, self._traffic)
        yield from memory_metrics(report)

    def _oldest_waiting_metric(self) -> Metric:
        now = clock.now()
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


def _queue_metrics(loads: Mapping[str, Load], vllm_prefix: str) -> Iterator[Metric]:
    running = {name: load.running + load.prefilling for name, load in loads.items()}
    yield model_gauges(
        f"{vllm_prefix}num_requests_running",
        "Sequences at work: their prompts are read, or their answers written.",
        running,
    )
    yield model_gauges(
        f"{vllm_prefix}num_requests_waiting",
        "Sequences in the queue.",
        {name: load.waiting for name, load in loads.items()},
    )


def _model_counters(counted: Mapping[str, Counted], vllm_prefix: str) -> Iterator[Metric]:
    yield model_counters(
        f"{vllm_prefix}num_preemptions",
        "Sequences that went back to the queue because memory was short.",
        {name: counts.reliefs[Relief.PREEMPT] for name, counts in counted.items()},
    )
    yield model_counters(
        "omlx_images_computed",
        "Images, or tiles of images, that a vision tower has computed. One that is seen again, in "
        "the next turn or elsewhere, is not computed again.",
        {name: counts.images.computed for name, counts in counted.items()},
    )
    yield model_counters(
        "omlx_images_seconds",
        "Seconds that images took in vision towers.",
        {name: counts.images.seconds for name, counts in counted.items()},
    )


def _stall_metric(counted: Mapping[str, Counted]) -> Metric:
    values: dict[tuple[str, str], float] = {}
    for name, counts in counted.items():
        values[label_of(name), "restarted"] = counts.stalls.restarted
        values[label_of(name), "ended"] = counts.stalls.ended
    return counters(
        "omlx_stalls",
        "Times that requests waited for 10 s and more while nothing was under way, by what was "
        "done: the scheduler was restarted with them, or they were ended with an error.",
        (MODEL, "outcome"),
        values,
    )


def _draft_metrics(counted: Mapping[str, Counted]) -> Iterator[Metric]:
    drafted, accepted = dict[tuple[str, str], float](), dict[tuple[str, str], float]()
    for name, counts in counted.items():
        for method in Method:
            drafted[label_of(name), method.value] = counts.drafts.drafted[method]
            accepted[label_of(name), method.value] = counts.drafts.accepted[method]
    labels = (MODEL, "method")
    yield counters(
        "omlx_draft_tokens", "Tokens that were drafted, by where they came from.", labels, drafted
    )
    yield counters(
        "omlx_accepted_draft_tokens", "Drafted tokens that were right.", labels, accepted
    )


def _expert_metrics(counted: Mapping[str, Counted]) -> Iterator[Metric]:
    values = {
        (label_of(name), kind): getattr(counts.experts, kind)
        for name, counts in counted.items()
        for kind in ("used", "missing", "guessed", "right")
    }
    text = "Experts that stay on the disk: used, missing from memory, read ahead, guessed right."
    yield counters("omlx_experts", text, (MODEL, "kind"), values)
    read = {name: counts.experts.bytes_read for name, counts in counted.items()}
    yield model_counters("omlx_experts_read_bytes", "Bytes of experts that were read.", read)


def memory_report_of(
    models: ServedModels, responses: ResponseStore, traffic: Traffic
) -> MemoryReport | None:
    """Return the engine's report with the API's bytes, None while the first model loads."""
    report = models.vitals.memory
    if report is None:
        return None
    loaded = models.loaded()
    api_bytes = {
        "grammars": sum(m.grammars.nbytes + m.grammars.bytes_apart for m in loaded),
        "token_ids": sum(m.tokenizer.kept_bytes for m in loaded),
        "responses": responses.memory_bytes,
        "bodies": traffic.body_bytes,
    }
    return replace(report, ledger=replace(report.ledger, **api_bytes))


def memory_metrics(report: MemoryReport | None) -> Iterator[Metric]:
    if report is None:
        return
    yield gauges(
        "omlx_memory_bytes",
        "Bytes that are held, by what they are for.",
        ("kind",),
        sums(report.ledger.lines().items()),
    )
    drift = "What MLX holds beyond the account, as a share of the account; negative for less."
    resident = "Bytes of RAM that the process takes, as the system says."
    pressure = "How short the machine is of memory: 0, 1 (warn) or 2 (critical)."
    for name, text, value in (
        ("limit_bytes", "Bytes that the server may hold.", report.ledger.limit),
        ("resident_bytes", resident, report.resident),
        ("pressure", pressure, report.pressure),
        ("drift_ratio", drift, report.drift),
    ):
        yield GaugeMetricFamily(f"omlx_memory_{name}", text, value=value)
    yield counters(
        "omlx_memory_relief",
        "Times that room had to be made, by how: sequences that were preempted or rejected, else "
        "steps.",
        ("kind",),
        sums(report.reliefs),
    )


def _build_info_metric() -> Metric:
    versions = (__version__, platform.python_version(), version("mlx"), version("mlx-lm"))
    return gauges(
        f"{OWN}build_info",
        "Always 1; its labels are the versions of the server, of Python, of MLX and of mlx-lm.",
        ("version", "python", "mlx", "mlx_lm"),
        {versions: 1},
    )


class _LoadedModels:
    """Remembers loaded models, to report 0 for one that leaves."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], None] = {}

    def metric(self, loaded: Iterable[Served]) -> Metric:
        loaded_now = {(label_of(model.names[0]), role_of(model).kind) for model in loaded}
        self._seen |= dict.fromkeys(sorted(loaded_now))
        return gauges(
            f"{OWN}model_loaded",
            "1 while a model is in memory, 0 once it has left, by its kind: chat, embedding or "
            "rerank.",
            (MODEL, "kind"),
            {labels: float(labels in loaded_now) for labels in self._seen},
        )


class _TextMetrics:
    """Counts characters by model, over the tokenizers of all its loads."""

    def __init__(self) -> None:
        # By model: the characters of tokenizers that are gone, and the latest tokenizer with its.
        self._earlier: dict[str, Characters] = {}
        self._latest: dict[str, tuple[weakref.ref[Tokenizer], Characters]] = {}

    def metric(self, names: Iterable[str], loaded: Iterable[ServedModel]) -> Metric:
        for model in loaded:
            self._note_tokenizer(model.names[0], model.tokenizer)
        values: dict[tuple[str, str], float] = {}
        for name in names:
            total = self._total_characters(name)
            values[label_of(name), "encoded"] = total.encoded
            values[label_of(name), "kept"] = total.reused
        return counters(
            f"{OWN}text_characters",
            "Characters of texts that became tokens, by how: they were encoded, or their tokens "
            "were kept since an earlier prompt.",
            (MODEL, "source"),
            values,
        )

    def _note_tokenizer(self, name: str, tokenizer: Tokenizer) -> None:
        if name in self._latest:
            latest, _ = self._latest[name]
            if latest() is not tokenizer:  # the model was loaded anew
                self._earlier[name] = self._total_characters(name)
        self._latest[name] = weakref.ref(tokenizer), tokenizer.characters

    def _total_characters(self, name: str) -> Characters:
        earlier = self._earlier.get(name, Characters())
        if name not in self._latest:
            return earlier
        _, characters = self._latest[name]
        return earlier + characters
