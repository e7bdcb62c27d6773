"""The self-test finds what is planted, and says in words what it means."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from omlx_server.compute.batch import LiveBatch
from omlx_server.compute.caches import Caches
from omlx_server.compute.payload import BlockCodec, Payload, pack
from omlx_server.compute.prefill import Prefilled
from omlx_server.core.blocks.record import PackedArrays
from omlx_server.core.memory.estimate import Planner
from omlx_server.doctor import probe
from omlx_server.doctor.finding import Level
from omlx_server.doctor.selftest import rows, run, speed
from omlx_server.doctor.software import Device
from omlx_server.engine import tiers
from omlx_server.store.files import Files
from omlx_server.wiring import model_factory
from tests.doctor.selftest.subjects import checked, finding, save_model, settings_for

GB = 10**9


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("models") / "tiny")


def test_without_a_flaw_nothing_fails(model: Path, tmp_path: Path) -> None:
    found = checked(model, settings_for(tmp_path))
    assert {what for what, check in found.items() if check.finding.level is Level.FAIL} == set()
    assert list(found) == [
        "mlx", "blas", "model", "hit: memory", "hit: files", "batch", "memory", "chunks",
        "1 stream", "8 streams",
    ]  # fmt: skip
    for what in ("hit: memory", "hit: files"):
        assert found[what].figures["hits"] == found[what].figures["answers"] == 6
    assert found["hit: files"].figures["blocks_read"] > 6


class DropsToken(BlockCodec):
    """Gives back one token less than it says, wherever blocks are joined."""

    def join(
        self, blocks: Sequence[Payload], checkpoint: Payload | None, stop: int, **options: Any
    ) -> Caches:
        return super().join(blocks, checkpoint, stop - 1, **options)


def test_a_codec_that_drops_a_token(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_factory, "BlockCodec", DropsToken)
    found = checked(model, settings_for(tmp_path))
    for what in ("hit: memory", "hit: files"):
        assert found[what].finding.level is Level.FAIL
        assert "are not those of a fresh prefill" in found[what].finding.says
        assert "cache.enabled = false" in found[what].finding.fix
    assert found["batch"].finding.level is Level.OK


def test_a_codec_that_loses_only_what_goes_to_files(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The digests of the files are right, so only the answers can tell."""

    def zeroed(payload: Payload) -> PackedArrays:
        packed = pack(payload)
        tensors = [replace(each, data=bytes(each.nbytes)) for each in packed.tensors]
        return replace(packed, tensors=tensors)

    monkeypatch.setattr(tiers, "pack", zeroed)
    found = checked(model, settings_for(tmp_path))
    assert found["hit: memory"].finding.level is Level.OK
    assert found["hit: files"].finding.level is Level.FAIL
    assert "are not those of a fresh prefill" in found["hit: files"].finding.says


def test_a_batch_that_mixes_rows(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    join = LiveBatch.join

    def mixing(self: LiveBatch, arrivals: Sequence[Prefilled]) -> None:
        join(self, arrivals)
        if len(self.rows) > 1:
            self._tokens = mx.concatenate([self._tokens[1:], self._tokens[:1]])

    monkeypatch.setattr(LiveBatch, "join", mixing)
    found = checked(model, settings_for(tmp_path))
    assert found["batch"].finding.level is Level.FAIL
    assert "rows of the batch are mixed up" in found["batch"].finding.says
    assert "max_batch_size = 1" in found["batch"].finding.fix
    assert found["hit: memory"].finding.level is Level.OK


@pytest.mark.parametrize(
    ("factor", "level", "words"),
    [(0.5, "fail", "memory may run out"), (2.0, "warn", "fewer conversations fit")],
)
def test_a_planner_that_is_off_by_two(
    factor: float,
    level: str,
    words: str,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("prefill", "decode"):
        plan = getattr(Planner, name)
        monkeypatch.setattr(
            Planner, name, lambda self, step, plan=plan: int(factor * plan(self, step))
        )
    settings = settings_for(tmp_path, scheduler={"prefill_chunk_tokens": 256})
    found = finding(model, settings, "memory")
    assert found.level == level
    assert words in found.says


def test_files_that_come_back_damaged(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = Files.put

    def damaging(self: Files, name: Any, parts: Sequence[Any]) -> None:
        content = bytearray(b"".join(bytes(part) for part in parts))
        content[-1] ^= 1
        put(self, name, [bytes(content)])

    monkeypatch.setattr(Files, "put", damaging)
    found = finding(model, settings_for(tmp_path), "hit: files")
    assert found.level is Level.FAIL
    assert "what the disk returns is not what was written" in found.says
    assert "No answer was wrong" in found.says
    assert "hot_cache_only" in found.fix


def test_a_check_that_raises_is_a_finding_and_the_others_follow(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raising(*arguments: object) -> float:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(rows, "Tally", raising)
    monkeypatch.setattr(speed, "decode_rate", raising)
    found = checked(model, settings_for(tmp_path))
    assert found["batch"].finding.level is Level.FAIL
    assert found["1 stream"].finding.level is found["8 streams"].finding.level is Level.WARN
    for what in ("batch", "1 stream", "8 streams"):
        assert "can't be checked: RuntimeError: no such kernel" in found[what].finding.says
    assert "planned" in found["memory"].finding.says


def test_a_build_without_blas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "FAST_BLAS", None)
    found = run.blas_check(probe.device_here()).finding
    assert found.level is Level.WARN
    assert "30 times slower" in found.says
    assert "libopenblas" in found.fix


def test_a_build_that_does_not_use_the_blas_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "matmul_gflops", lambda: 1.5)
    found = run.blas_check(Device("CPU", True, "libopenblas.so.0", 8 * GB, None)).finding
    assert found.level is Level.WARN
    assert "computes without it" in found.says
    gpu = run.blas_check(Device("M4", False, None, 8 * GB, 6 * GB)).finding
    assert gpu.level is Level.OK
