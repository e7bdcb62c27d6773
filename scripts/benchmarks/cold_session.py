"""What the cold tier is worth and what it costs: a prompt asked again after a restart, and decode
while blocks are written. Of our own server only; its peers have no such tier.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import mean

import httpx

from omlx_server.cli.bench.target import decode_rate
from scripts.benchmarks.http_system import HttpSystem, start_ours
from scripts.benchmarks.metrics import Better, Metric, Requirement, Sample, Spec, find
from scripts.benchmarks.plan import Plan
from scripts.benchmarks.prompts import QUESTIONS, PromptMaker
from scripts.benchmarks.workload import Workload

_NEW = Spec("cold_new", "first token of a prompt, new", "ms", Better.LOWER)
_AGAIN = Spec("cold_again", "  after a restart, from the cold tier", "ms", Better.LOWER)
_GAIN = Spec("cold_gain", "  after a restart over new", "x", Better.LOWER)
_COMPUTED = Spec("cold_computed", "  after a restart, computed", "tokens", Better.LOWER)
_READ = Spec("cold_read", "  read, until the first token", "MB/s", Better.HIGHER)
_WRITTEN = Spec("cold_written", "bytes written over bytes of blocks", "x", Better.LOWER)
_DECODE = Spec("cold_decode", "decode while all blocks are written, over none", "x", Better.HIGHER)

Begin = Callable[[str], None]


class ColdSession:
    """One round. `begin` is told what is measured next."""

    def __init__(self, plan: Plan, model: Path, folder: Path, begin: Begin) -> None:
        self._plan = plan
        self._model = model
        self._folder = folder
        self._begin = begin

    def samples(self, prompts: PromptMaker, nonce: str) -> Iterator[Sample]:
        yield from self._restart(prompts, nonce)
        yield from self._decode(prompts, nonce)

    def _restart(self, prompts: PromptMaker, nonce: str) -> Iterator[Sample]:
        plan = self._plan
        prompt = prompts.document(plan.repeat_tokens, f"cold {nonce}", QUESTIONS[0])
        workload = Workload((prompt,), plan.cache_out, may_end=True)
        self._begin(f"{plan.repeat_tokens} tokens, new")
        with self._server("restart") as server:
            (new,) = server.ask(workload)
            kept = _metric(server, r'omlx_cache_bytes\{.*tier="hot".*\}')
        self._begin(f"{plan.repeat_tokens} tokens, after a restart")
        with self._server("restart") as server:
            (again,) = server.ask(workload)
            read = _metric(server, "omlx_cache_read_bytes_total")
        written = sum(f.stat().st_size for f in self._kv("restart").rglob("*.safetensors"))
        yield Sample(_NEW, "ours", 1e3 * new.stream.ttft)
        yield Sample(_AGAIN, "ours", 1e3 * again.stream.ttft)
        yield Sample(_GAIN, "ours", again.stream.ttft / new.stream.ttft)
        yield Sample(_COMPUTED, "ours", again.computed or 0)
        yield Sample(_READ, "ours", read / again.stream.ttft / 1e6)
        yield Sample(_WRITTEN, "ours", written / kept)

    def _decode(self, prompts: PromptMaker, nonce: str) -> Iterator[Sample]:
        """Both servers are there at the same time and take turns."""
        plan, rates = self._plan, {"on": list[float](), "off": list[float]()}
        title = f"decode at {max(plan.streams)}, blocks written and not"
        self._begin(title)
        with (
            self._server("on", "cache.cold_write_through=true") as on,
            self._server("off", "cache.hot_cache_only=true") as off,
        ):
            for turn in range(2 * plan.cold_turns):
                asked = prompts.make(max(plan.streams), plan.prompt_tokens, f"{nonce} {turn}")
                name, server = (("on", on), ("off", off))[turn % 2]
                rate = decode_rate(server.run(Workload(asked, plan.cold_out)).streams)
                if rate is not None:
                    rates[name].append(rate)
        if all(rates.values()):
            yield Sample(_DECODE, "ours", mean(rates["on"]) / mean(rates["off"]))

    @contextmanager
    def _server(self, name: str, *settings: str) -> Iterator[HttpSystem]:
        folder = self._folder / f"cold-{name}"
        folder.mkdir(parents=True, exist_ok=True)
        where = (f"cache.cold_dir={self._kv(name)}", "cache.cold_min_free_disk=0")
        server = start_ours(self._model, folder, *where, *settings)
        try:
            server.wait_until_ready()
            yield server
        finally:
            server.child.end()

    def _kv(self, name: str) -> Path:
        return self._folder / f"cold-{name}" / "kv"


def requirements(metrics: Sequence[Metric]) -> list[Requirement]:
    """The bound of issue 4 on the write path."""
    decode = find(metrics, _DECODE.name)
    return [
        Requirement(_DECODE.title, decode.median("ours") if decode else None, 0.97, Better.HIGHER)
    ]


def _metric(server: HttpSystem, name: str) -> float:
    """The sum of a family on the server's /metrics page."""
    text = httpx.get(f"{server.url}/metrics", timeout=30, trust_env=False).text
    return sum(float(match[1]) for match in re.finditer(rf"^{name}\S* (\S+)$", text, re.MULTILINE))
