"""What models that read take of the memory: planned by short probes, held within what there is."""

import json
import subprocess
import sys
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from omlx_server.compute.embed import probe
from omlx_server.compute.embed.backbone_encoder import BackboneEncoder, PassSize
from omlx_server.compute.embed.batch import Backbone, BatchResult
from omlx_server.compute.embed.loader import loading_cross_encoder, loading_embedder
from omlx_server.compute.embed.probe import planning
from omlx_server.compute.planning.probe import measure_peak
from omlx_server.compute.weights import weights as weights_loader
from omlx_server.core.encoded import TokenizedText
from omlx_server.core.memory.encoder import EncoderPlan, Pass
from omlx_server.core.memory.room import Claim
from omlx_server.core.work import finish
from omlx_server.errors import NoMemory
from tests.compute.embed import tiny
from tests.compute.embed.loading import collect, load_embedder
from tests.compute.embed.passes import HELD_OUT, made, took


def test_no_pass_takes_more_than_was_planned() -> None:
    """In a process of its own: MLX's peak is of all threads, also those that other tests left."""
    kinds = ("bert float32", "ranker float32", "qwen3 float32", "qwen3 bfloat16")
    words = [word for kind in kinds for word in kind.split()]
    command = [sys.executable, "-m", "tests.compute.embed.passes", *words]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert tuple(found) == kinds
    assert all(min(ratios) >= 0.95 and max(ratios) < 3 for ratios in found.values()), found


def test_attention_in_pieces_is_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omlx_server.compute.attention.all_to_all.MOST_SCORES", 1 << 20)
    monkeypatch.setattr("omlx_server.compute.attention.all_to_all.attend.__defaults__", (1 << 20,))
    backbone, head = made("bert")
    plan = finish(planning(backbone, head, 0, 2048))
    for one in (Pass(1, 1200, 64), Pass(4, 600, 64)):
        ratio = plan.needs(one) / took(backbone, head, one)
        assert 0.95 <= ratio < 3


def test_where_nothing_can_be_measured_a_bound_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    backbone, head = made("bert")
    monkeypatch.setattr("omlx_server.compute.embed.probe._measure_bytes", lambda *args: 0)
    plan = finish(planning(backbone, head, 0, 2048))
    for one in HELD_OUT:
        assert plan.needs(one) >= 0.95 * took(backbone, head, one)


def test_a_probe_that_is_disturbed_changes_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each third run takes a third more, as when the host is far ahead of the device."""
    backbone, head = made("qwen3")
    calm = finish(planning(backbone, head, 0, 2048))
    runs = iter(range(1000))
    undisturbed = probe._measure_bytes

    def disturbed(*args: Any) -> int:
        return int(undisturbed(*args) * (1 if next(runs) % 3 else 1.33))

    monkeypatch.setattr(probe, "_measure_bytes", disturbed)
    plan = finish(planning(backbone, head, 0, 2048))
    for one in HELD_OUT:
        assert plan.needs(one) == pytest.approx(calm.needs(one), rel=0.1)


@dataclass
class Purse:
    """So many bytes, and what was set aside of them."""

    nbytes: int
    aside: int = 0
    claims: list[int] = field(default_factory=list)
    asked: int = 0
    busy: int = 0  # so many times somebody else has all of it

    def check(self, nbytes: int) -> None:
        if nbytes > self.nbytes:
            raise NoMemory(f"{nbytes} of {self.nbytes}")

    def claim(self, needs: Sequence[int]) -> Generator[None, None, Claim]:
        while self.busy:
            self.busy -= 1
            yield
        self.asked += 1
        fitting = [n for n, need in enumerate(needs, 1) if need <= self.nbytes - self.aside]
        return self._held(needs[fitting[-1] - 1], fitting[-1])

    @contextmanager
    def _held(self, nbytes: int, count: int) -> Iterator[int]:
        self.aside += nbytes
        self.claims.append(nbytes)
        try:
            yield count
        finally:
            self.aside -= nbytes


@pytest.mark.parametrize("kind", ["bert", "ranker", "qwen3"])
def test_as_many_are_read_together_as_there_is_room_for(kind: str) -> None:
    backbone, head = made(kind)
    body = BackboneEncoder(backbone, 0, finish(planning(backbone, head, 0, 2048)))
    pass_size = PassSize(2048, 64)
    inputs = [TokenizedText(tuple(range(2, 40 + n))) for n in range(24)]
    roomy, narrow = Purse(1 << 40), Purse(body.plan.needs(Pass(3, 61, 64)))
    whole = collect(body.encode(inputs, head, pass_size, roomy), 24)
    pieces = list[mx.array]()
    peak = measure_peak(
        lambda: pieces.extend(collect(body.encode(inputs, head, pass_size, narrow), 24))
    )
    assert peak.peak - peak.before <= narrow.nbytes * 1.05
    assert narrow.asked > 2 * roomy.asked
    assert max(narrow.claims) <= narrow.nbytes and narrow.aside == 0
    for one, other in zip(whole, pieces, strict=True):
        assert np.abs(np.array(one) - np.array(other)).max() < 1e-5


def test_what_could_never_fit_is_refused_before_anything_is_computed() -> None:
    backbone, head = made("bert")
    body = BackboneEncoder(backbone, 0, finish(planning(backbone, head, 0, 2048)))
    purse = Purse(body.plan.needs(Pass(1, 200, 64)))
    fits, long = TokenizedText((5,) * 200), TokenizedText((5,) * 201)
    assert len(collect(body.encode([fits], head, PassSize(256, 64), purse), 1)) == 1
    asked = purse.asked
    with pytest.raises(NoMemory):
        next(iter(body.encode([fits, long], head, PassSize(256, 64), purse)))
    assert (purse.asked, purse.aside) == (asked, 0)


def test_work_waits_for_room_and_gives_it_back_when_it_is_given_up() -> None:
    backbone, head = made("bert")
    plan = EncoderPlan(backbone.shape(4), (8.0, 6.0))
    purse = Purse(1 << 40, busy=3)
    work = BackboneEncoder(backbone, 0, plan).encode(
        [TokenizedText((5,) * 128)], head, PassSize(64, 64), purse
    )
    turns = iter(work)
    assert [next(turns) for _ in range(3)] == [None] * 3
    assert purse.asked == 0
    assert next(turns) is None and purse.aside == plan.needs(Pass(1, 128, 64))
    turns.close()  # type: ignore[attr-defined]
    assert purse.aside == 0


def test_nothing_is_held_between_groups() -> None:
    """Nor counted: of what was read only the results are left."""
    backbone, head = made("bert")
    plan = EncoderPlan(backbone.shape(4), (8.0, 6.0))
    purse, inputs = Purse(1 << 40), [TokenizedText((5,) * 100)] * 6
    work = BackboneEncoder(backbone, 0, plan).encode(inputs, head, PassSize(200, 200), purse)
    mx.synchronize()
    before = mx.get_active_memory()
    for part in work:
        assert isinstance(part, BatchResult) and purse.aside == 0
        mx.synchronize()
        assert mx.get_active_memory() - before < 16 * 1024


# -- loading -------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["BertModel", "Qwen3Model", "BertForSequenceClassification"])
def test_weights_are_read_a_few_at_a_time(
    tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights_loader, "_SLICE_BYTES", 2048)
    monkeypatch.setattr("omlx_server.compute.embed.loader.planning", without_probes)
    directory = tiny.save(tmp_path, case)
    largest = max(array.nbytes for array in tiny.weights_of(case).values())
    work = (loading_cross_encoder if "Classification" in case else loading_embedder)(directory)
    mx.synchronize()
    last, grown = mx.get_active_memory(), list[int]()
    try:
        while True:
            next(work)
            mx.synchronize()
            grown.append(mx.get_active_memory() - last)
            last += grown[-1]
    except StopIteration as end:
        model = end.value
    assert max(grown) <= 2048 + largest + 1024
    assert len(grown) >= model.weight_bytes / (2048 + largest)


def without_probes(backbone: Backbone, *args: object) -> Generator[None, None, EncoderPlan]:
    yield from ()
    return EncoderPlan(backbone.shape(4), (8.0, 6.0))


def test_a_first_layer_alone_shares_the_weights_of_all(tmp_path: Path) -> None:
    whole = load_embedder(tiny.save(tmp_path, "BertModel"))
    inputs = tiny.inputs_of("BertModel")
    before = np.array(mx.stack(collect(whole.embed(inputs), len(inputs))))
    backbone = whole.encoder._backbone
    short = backbone.shallow(1)
    assert (short.shape(4).layers, backbone.shape(4).layers) == (1, 2)
    after = np.array(mx.stack(collect(whole.embed(inputs), len(inputs))))
    assert (before == after).all()
