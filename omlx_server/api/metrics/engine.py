"""Metrics of the engine, of loaded models and their texts, read from snapshots. vLLM's metrics are
for each model, those of cache tiers and memory for all together."""

import platform
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from importlib.metadata import version

from prometheus_client.core import GaugeMetricFamily, Metric

from omlx_server import __version__
from omlx_server.api.metric_helpers import MODEL, OWN, by_model, counters, gauges, label_of, sums
from omlx_server.api.metrics import prefix_cache
from omlx_server.api.metrics.traffic import Traffic
from omlx_server.api.models.served import ServedModels
from omlx_server.api.models.served_model import Served, ServedModel, role_of
from omlx_server.api.response_store.store import Store
from omlx_server.core.memory.guard import Relief
from omlx_server.core.memory.ledger import MemoryReport
from omlx_server.core.scheduler.limits import Load
from omlx_server.core.scheduler.order import SIZES
from omlx_server.core.speculation.methods import Method
from omlx_server.engine.messages import Counted
from omlx_server.text.encoding.kept_ids import Characters
from omlx_server.text.tokenizer import Tokenizer

_NO_LOAD = Load(0, 0, 0)


class EngineMetrics:
    """A collector over the engine's snapshots. A model has metrics from its first load on."""

    def __init__(
        self, models: ServedModels, shared: str, responses: Store, traffic: Traffic
    ) -> None:
        self._models = models
        self._responses = responses
        self._traffic = traffic
        self._shared = shared
        self._texts = TextMetrics()
        self._loaded = LoadedModels()
        self._build = build_info()

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys((*self._models.vitals.counted, *self._loads)))

    @property
    def _loads(self) -> dict[str, Load]:
        return {name: status.load for name, status in self._models.engines()}

    def collect(self) -> Iterator[Metric]:
        vitals, shared = self._models.vitals, self._shared
        counted, loads = vitals.counted, self._loads
        caches = {name: one.cache for name, one in counted.items()}
        yield self._build
        yield self._loaded.family(self._models.pool.loaded())
        yield from _at_work({name: loads.get(name, _NO_LOAD) for name in self.names}, shared)
        yield self._oldest()
        yield from prefix_cache.of_models(caches, shared)
        yield from _counts(counted, shared)
        yield _stalls(counted)
        yield from _drafts(counted)
        yield self._texts.family(self.names, self._models.loaded())
        yield from prefix_cache.of_tiers(list(caches.values()), vitals.cold)
        account = account_of(self._models, self._responses, self._traffic)
        yield from memory_families(account)

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


def _counts(counted: Mapping[str, Counted], shared: str) -> Iterator[Metric]:
    yield counters(
        f"{shared}num_preemptions",
        "Sequences that went back to the queue because memory was short.",
        (MODEL,),
        by_model({name: one.reliefs[Relief.PREEMPT] for name, one in counted.items()}),
    )
    yield counters(
        "omlx_images_computed",
        "Images, or tiles of images, that a vision tower has computed. One that is seen again, in "
        "the next turn or elsewhere, is not computed again.",
        (MODEL,),
        by_model({name: one.images.computed for name, one in counted.items()}),
    )
    yield counters(
        "omlx_images_seconds",
        "Seconds that images took in vision towers.",
        (MODEL,),
        by_model({name: one.images.seconds for name, one in counted.items()}),
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


def _drafts(counted: Mapping[str, Counted]) -> Iterator[Metric]:
    drafted, accepted = dict[tuple[str, str], float](), dict[tuple[str, str], float]()
    for name, one in counted.items():
        for method in Method:
            drafted[label_of(name), method.value] = one.drafts.drafted[method]
            accepted[label_of(name), method.value] = one.drafts.accepted[method]
    labels = (MODEL, "method")
    yield counters(
        "omlx_draft_tokens", "Tokens that were drafted, by where they came from.", labels, drafted
    )
    yield counters(
        "omlx_accepted_draft_tokens", "Drafted tokens that were right.", labels, accepted
    )


def account_of(models: ServedModels, responses: Store, traffic: Traffic) -> MemoryReport | None:
    """Return the engine's memory report with the HTTP side's bytes, None while the first model
    loads."""
    report = models.vitals.memory
    if report is None:
        return None
    loaded = models.loaded()
    beside = {
        "grammars": sum(m.grammars.nbytes + m.grammars.bytes_apart for m in loaded),
        "token_ids": sum(m.tokenizer.kept_bytes for m in loaded),
        "responses": responses.memory_bytes,
        "bodies": traffic.body_bytes,
    }
    return replace(report, ledger=replace(report.ledger, **beside))


def memory_families(report: MemoryReport | None) -> Iterator[Metric]:
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
    for name, text, value in (
        ("limit_bytes", "Bytes that the server may hold.", report.ledger.limit),
        ("resident_bytes", resident, report.resident),
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


def build_info() -> Metric:
    versions = (__version__, platform.python_version(), version("mlx"), version("mlx-lm"))
    return gauges(
        f"{OWN}build_info",
        "Always 1; its labels are the versions of the server, of Python, of MLX and of mlx-lm.",
        ("version", "python", "mlx", "mlx_lm"),
        {versions: 1},
    )


class LoadedModels:
    """Remembers loaded models, to report 0 for one that leaves."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], None] = {}

    def family(self, loaded: Iterable[Served]) -> Metric:
        now = {(label_of(model.names[0]), role_of(model).kind) for model in loaded}
        self._seen |= dict.fromkeys(sorted(now))
        return gauges(
            f"{OWN}model_loaded",
            "1 while a model is in memory, 0 once it has left, by its kind: chat, embedding or "
            "rerank.",
            (MODEL, "kind"),
            {labels: float(labels in now) for labels in self._seen},
        )


class TextMetrics:
    """Counts characters by model, over the tokenizers of all its loads."""

    def __init__(self) -> None:
        self._earlier: dict[str, Characters] = {}
        self._last: dict[str, tuple[weakref.ref[Tokenizer], Characters]] = {}

    def family(self, names: Iterable[str], loaded: Iterable[ServedModel]) -> Metric:
        for model in loaded:
            self._note(model.names[0], model.tokenizer)
        values: dict[tuple[str, str], float] = {}
        for name in names:
            total = self._total(name)
            values[label_of(name), "encoded"] = total.encoded
            values[label_of(name), "kept"] = total.reused
        return counters(
            f"{OWN}text_characters",
            "Characters of texts that became tokens, by how: they were encoded, or their tokens "
            "were kept since an earlier prompt.",
            (MODEL, "source"),
            values,
        )

    def _note(self, name: str, tokenizer: Tokenizer) -> None:
        last = self._last.get(name)
        if last is not None and last[0]() is not tokenizer:
            self._earlier[name] = self._total(name)
        self._last[name] = weakref.ref(tokenizer), tokenizer.characters

    def _total(self, name: str) -> Characters:
        last = self._last.get(name)
        earlier = self._earlier.get(name, Characters())
        return earlier if last is None else earlier + last[1]
