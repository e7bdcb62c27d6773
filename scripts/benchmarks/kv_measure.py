"""Carries out the plan of `scripts/bench kv`: each measurement in a process of its own."""

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from scripts.benchmarks import environment, kv_quantities
from scripts.benchmarks.kv_models import WIDTHS
from scripts.benchmarks.kv_plan import KvPlan
from scripts.benchmarks.kv_quantities import Group
from scripts.benchmarks.kv_variants import PLAIN, Variant
from scripts.benchmarks.process import Child
from scripts.benchmarks.progress import Steps

_BYTES_LAYERS = 2


class KvBench:
    """`folder` takes the logs of the processes."""

    def __init__(self, plan: KvPlan, model: Path, folder: Path, steps: Steps) -> None:
        self._plan = plan
        self._model = model
        self._folder = folder
        self._steps = steps

    def run(self) -> list[Group]:
        """In the order of the plan's parts. Raises ChildFailed."""
        parts = {
            "quality": self._quality,
            "bytes": self._bytes,
            "tokens": self._tokens,
            "memory": self._memory,
            "speed": self._speed,
        }
        return [group for name in self._plan.only for group in parts[name]()]

    def _quality(self) -> Iterator[Group]:
        plan = self._plan
        title = f"quality of {len(plan.variants)} variants over the text"
        found = self._ask(
            title, "quality", plan.variants, model=str(self._model), tokens=plan.text_tokens
        )
        yield kv_quantities.quality(found["tokens"], found["quality"])

    def _bytes(self) -> Iterator[Group]:
        variants = (PLAIN, *self._plan.variants)
        job = {"layers": _BYTES_LAYERS, "dtypes": list(WIDTHS)}
        found = self._ask("bytes per token", "bytes", variants, **job)
        yield kv_quantities.held_bytes(variants, found)

    def _tokens(self) -> Iterator[Group]:
        plan = self._plan
        title = f"tokens in {plan.hot_bytes >> 20} MiB"
        job = {"layers": plan.fill_layers, "dtypes": list(WIDTHS), "hot_bytes": plan.hot_bytes}
        found = self._ask(title, "tokens", (PLAIN, *plan.compared), **job)
        yield kv_quantities.tokens(plan, found)

    def _memory(self) -> Iterator[Group]:
        plan, peaks = self._plan, {}
        job = {"layers": plan.peak_layers, "dtype": "float32", "count": plan.peak_tokens}
        for variant in (PLAIN, *plan.compared):
            title = f"peak of memory over {plan.peak_tokens} tokens, {variant.name}"
            peaks[variant] = self._ask(title, "memory", [variant], **job)
        yield kv_quantities.memory(plan, peaks)

    def _speed(self) -> Iterator[Group]:
        plan, repeats = self._plan, {"repeats": self._plan.repeats}
        decodes = [
            {"context": context, "streams": streams}
            for context in plan.contexts
            for streams in plan.streams
        ]
        prefills = [
            {"count": plan.prefill_tokens, "streams": 1},
            {"count": plan.grouped_tokens, "streams": max(plan.streams)},
        ]
        found = self._ask(
            "speed",
            "speed",
            (PLAIN, *plan.compared),
            model=str(self._model),
            decodes=[{**run, "steps": plan.decode_steps, **repeats} for run in decodes],
            prefills=[{**run, **repeats} for run in prefills],
        )
        yield kv_quantities.decode(decodes, found["decodes"])
        yield kv_quantities.prefill(prefills, found["prefills"])

    def _ask(
        self, title: str, measure: str, variants: Sequence[Variant], **job: Any
    ) -> dict[str, Any]:
        """What a process of its own has found."""
        self._steps.begin(title)
        pairs = [(variant.scheme, variant.bits) for variant in variants]
        text = json.dumps({"measure": measure, "variants": pairs, **job})
        command = [sys.executable, "-m", "scripts.benchmarks.kv_worker", text]
        child = Child(command, environment.clean(), self._folder / f"kv_{measure}.log", piped=True)
        try:
            line = child.pipes[1].readline()
            if not line:
                raise child.failure("ended")
        finally:
            child.end()
        self._steps.done("done")
        found: dict[str, Any] = json.loads(line)
        return found


def count_kv_steps(plan: KvPlan) -> int:
    """How many steps `KvBench.run` will tell of."""
    return sum(1 + len(plan.compared) if name == "memory" else 1 for name in plan.only)
