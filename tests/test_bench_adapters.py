"""`scripts/bench adapters`, on a tiny model: what it measures is there."""

from scripts.benchmarks.adapters_measure import (
    ADAPTED,
    PLAIN,
    AdaptersBench,
    AdaptersPlan,
    linear_layers,
    requirements,
)
from tests.tiny_models import load_tiny


def test_a_step_with_adapters_is_measured_beside_one_without() -> None:
    loaded = load_tiny("llama")
    plan = AdaptersPlan(rows=(1, 2), length=20, steps=2, repeats=2)
    metrics = AdaptersBench(loaded, plan).run()
    assert [metric.spec.name for metric in metrics] == ["step_1", "step_2"]
    assert all((metric.ratio(ADAPTED, PLAIN) or 0) > 0 for metric in metrics)
    assert len(requirements(metrics)) == 2
    assert len(loaded.adapters.loaded) == 2
    assert len(linear_layers(loaded.model)) == 2 * 7
