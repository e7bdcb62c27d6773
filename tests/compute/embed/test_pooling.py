"""One vector of many, and what a model's files say about how."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from omlx_server.compute.embed.pooling import Mode, Pooling, read_pooling
from omlx_server.errors import ModelUnavailable
from tests.compute.embed.tiny import save_pooling

HIDDEN = mx.array([[[3.0, 4.0], [1.0, 0.0], [9.0, 9.0]], [[1.0, 1.0], [2.0, 2.0], [6.0, 0.0]]])
LENGTHS = mx.array([2, 3])
DEFAULT = Pooling(Mode.LAST, normalise=True)


def test_padding_does_not_count() -> None:
    plain = {mode: Pooling(mode, normalise=False)(HIDDEN, LENGTHS).tolist() for mode in Mode}
    assert plain[Mode.MEAN] == [[2.0, 2.0], [3.0, 1.0]]
    assert plain[Mode.CLS] == [[3.0, 4.0], [1.0, 1.0]]
    assert plain[Mode.LAST] == [[1.0, 0.0], [6.0, 0.0]]


def test_normalised_in_float32() -> None:
    pooling = Pooling(Mode.CLS, normalise=True)
    vectors = pooling(HIDDEN.astype(mx.bfloat16), LENGTHS)
    assert vectors.dtype == mx.float32
    assert vectors[0].tolist() == pytest.approx([0.6, 0.8], abs=1e-7)
    assert pooling(mx.zeros((1, 1, 2)), mx.array([1])).tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize(
    ("config", "mode"),
    [
        ({"pooling_mode": "mean"}, Mode.MEAN),
        ({"pooling_mode": ["lasttoken"]}, Mode.LAST),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, Mode.CLS),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_lasttoken": False}, Mode.MEAN),
        ({"pooling_mode_lasttoken": True}, Mode.LAST),
    ],
)
def test_files_tell_the_way(tmp_path: Path, config: dict[str, Any], mode: Mode) -> None:
    save_pooling(tmp_path, config)
    assert read_pooling(tmp_path, DEFAULT) == Pooling(mode, normalise=False)
    save_pooling(tmp_path, config, "Normalize")
    assert read_pooling(tmp_path, DEFAULT) == Pooling(mode, normalise=True)


def test_without_files_the_default(tmp_path: Path) -> None:
    assert read_pooling(tmp_path, DEFAULT) == DEFAULT


@pytest.mark.parametrize(
    "config",
    [
        {"pooling_mode_max_tokens": True},
        {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True},
        {"pooling_mode": "weightedmean"},
        {"pooling_mode": 3},
        {},
    ],
)
def test_a_way_that_is_not_known_is_refused(tmp_path: Path, config: dict[str, Any]) -> None:
    save_pooling(tmp_path, config)
    with pytest.raises(ModelUnavailable, match="way of pooling"):
        read_pooling(tmp_path, DEFAULT)


def test_other_steps_are_refused(tmp_path: Path) -> None:
    save_pooling(tmp_path, {"pooling_mode": "mean"}, "Dense")
    with pytest.raises(ModelUnavailable, match="'Dense'"):
        read_pooling(tmp_path, DEFAULT)


@pytest.mark.parametrize("text", ["{", "[3]", '[{"type": "a.Pooling"}]', "7"])
def test_a_damaged_list_of_steps(tmp_path: Path, text: str) -> None:
    (tmp_path / "modules.json").write_text(text)
    with pytest.raises(ModelUnavailable, match=r"modules\.json"):
        read_pooling(tmp_path, DEFAULT)


def test_steps_stay_in_the_directory(tmp_path: Path) -> None:
    (tmp_path / "modules.json").write_text('[{"type": "a.Pooling", "path": "../x"}]')
    with pytest.raises(ModelUnavailable, match="out of the directory"):
        read_pooling(tmp_path, DEFAULT)
