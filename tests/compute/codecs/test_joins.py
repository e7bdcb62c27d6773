"""Rows that join a batch or leave it, against what the planner sets aside for that: what lives
afterwards, or did before, and one layer of the batch."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from omlx_server.compute import caches as cache_ops
from omlx_server.compute.batch import LiveBatch
from omlx_server.compute.hardware import device, device_policy
from omlx_server.compute.hardware.device_policy import DevicePolicy
from omlx_server.compute.planning.probe import ForwardProbe
from omlx_server.compute.prefill import Prefilled, Prefiller
from omlx_server.core.memory.estimate import Coefficients, Planner, PrefillFactors
from omlx_server.core.memory.kv import Decode, PrefillShape, StepShape
from omlx_server.core.step import Chunk
from tests.compute.held import MODELS, held, planned
from tests.tiny_models import load_tiny

LONG, SHORT, CHUNK = 4000, 100, 256
# The least that probes can make of any model.
_NOTHING = PrefillFactors((0.0,) * 2, (0.0,) * 5)
LEAST = Coefficients(_NOTHING, _NOTHING, (0.0,) * 3, (0.0,) * 4, copies=(1.0, 0.0))


@dataclass(frozen=True, slots=True)
class Change:
    """What happens to the rows of a batch, and how it is planned."""

    batch: LiveBatch
    step: StepShape
    change: Callable[[], object]

    def run(self) -> None:
        """Computes what the change may have left to the next decode."""
        self.change()
        cache_ops.evaluate(self.batch.caches, wait=True)


def joining(batch: LiveBatch, arrivals: list[Prefilled], rows: int, longest: int = LONG) -> Change:
    step = StepShape(Decode(rows, longest, grows=True))
    return Change(batch, step, lambda: batch.join(arrivals))


def leaving(batch: LiveBatch, first: int, stop: int, longest: int = LONG) -> Change:
    """The rows of those numbers leave, and the `longest` was there before."""
    rows = len(batch.rows) - (stop - first)
    gone = batch.ids[first:stop]
    step = StepShape(Decode(rows, longest, grows=True))
    return Change(batch, step, lambda: batch.drop(gone))


def several_join(bench: ForwardProbe) -> Change:
    return joining(bench.batch(4, LONG), bench.arrivals(4, 8, LONG), 8)


def a_second_joins(bench: ForwardProbe) -> Change:
    return joining(bench.batch(1, LONG), bench.arrivals(1, 2, LONG), 2)


def all_join_at_once(bench: ForwardProbe) -> Change:
    return joining(bench.batch(0, 0), bench.arrivals(0, 8, LONG), 8)


def choices_of_one_prompt_join(bench: ForwardProbe) -> Change:
    joins = tuple(row.joins[0] for row in bench.arrivals(0, 8, 1))
    [prompt] = bench.arrivals(0, 1, LONG)
    return joining(bench.batch(0, 0), [Prefilled(joins, prompt.caches, solo=True)], 8)


def a_short_one_joins_full_buffers(bench: ForwardProbe) -> Change:
    batch = bench.batch(0, 0)
    batch.join(bench.arrivals(0, 7, LONG))
    return joining(batch, bench.arrivals(7, 8, SHORT), 8)


def a_long_one_joins_short_ones(bench: ForwardProbe) -> Change:
    return joining(bench.batch(7, SHORT), bench.arrivals(7, 8, LONG), 8)


def a_group_joins(bench: ForwardProbe) -> Change:
    """Its caches were read together, and come as a batch."""
    start = LONG - CHUNK
    prefiller, chunks = Prefiller(bench.model, batchable=True), []
    for prompt in bench.arrivals(4, 8, start):
        [join] = prompt.joins
        prefiller.restore(join.id, prompt.caches)
        chunks.append(Chunk(join.id, start, (0,) * CHUNK, (join,)))
    group = prefiller.run(chunks)
    assert group is not None
    alone = joining(bench.batch(4, LONG), [group], 8)
    return replace(alone, step=StepShape(alone.step.decode, (PrefillShape(4, CHUNK, start),)))


def one_leaves(bench: ForwardProbe) -> Change:
    return leaving(bench.batch(8, LONG), 7, 8)


def most_leave(bench: ForwardProbe) -> Change:
    return leaving(bench.batch(8, LONG), 1, 8)


def the_longest_leaves(bench: ForwardProbe) -> Change:
    batch = bench.batch(7, SHORT)
    batch.join(bench.arrivals(7, 8, LONG))
    batch.decode()
    return leaving(batch, 7, 8)


CHANGES = (
    several_join,
    a_second_joins,
    all_join_at_once,
    choices_of_one_prompt_join,
    a_short_one_joins_full_buffers,
    a_long_one_joins_short_ones,
    a_group_joins,
    one_leaves,
    most_leave,
    the_longest_leaves,
)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_layer_more_than_lives_is_enough(
    name: str, change: Callable[[ForwardProbe], Change]
) -> None:
    loaded, known = planned(name)
    planner, bench = Planner(known.model, LEAST), ForwardProbe(loaded)
    nothing = bench.measure(lambda: None).before
    made = change(bench)
    peak = bench.measure(made.run)
    decode = made.step.decode
    assert decode is not None
    lives = max(peak.before - nothing, planner.live([decode.context] * decode.rows))
    assert peak.peak - nothing <= lives + planner.transient(made.step)


def test_a_group_widens_the_rings_of_all_until_they_decode() -> None:
    loaded, planner = planned("gemma3_text")
    made = a_group_joins(ForwardProbe(loaded))
    made.run()
    decode, prefill = made.step.decode, made.step.prefills[0]
    assert decode is not None
    worst = max(planner.decode(decode), planner.prefill(prefill))
    rings = planner.transient(made.step) - worst
    said = planner.live([decode.context] * decode.rows)
    assert said < held(made.batch.caches) <= said + rings
    made.batch.decode()
    assert held(made.batch.caches) <= said


@pytest.mark.parametrize(
    ("policy", "at_once", "waits"),
    [
        (device_policy.CPU, 16 << 20, 1),
        (device_policy.CPU, 1, 2 * 8),
        (device_policy.GPU, 16 << 20, 0),
        (device_policy.GPU, 1, 2 * 8 - 2),
    ],
)
def test_few_are_waited_for(
    policy: DevicePolicy, at_once: int, waits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each wait lets the GIL go, and whoever takes it keeps it for a while: a batch of 30 layers
    has 60 arrays. Beside the host two parts are under way, and those before are waited for."""
    policy = replace(policy, copied_at_once=at_once)
    monkeypatch.setattr(device_policy, "current", lambda: policy)
    bench = ForwardProbe(load_tiny("llama", num_hidden_layers=8))
    made = joining(bench.batch(4, SHORT), bench.arrivals(4, 5, SHORT), 5)
    waited, wait_for = list[object](), device.wait_for

    def counted(*arrays: object) -> None:
        waited.append(arrays)
        wait_for(*arrays)

    monkeypatch.setattr(device, "wait_for", counted)
    made.change()
    assert len(waited) == waits
