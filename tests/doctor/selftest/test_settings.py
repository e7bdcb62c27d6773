"""The self-test with other settings and models: what can't be checked is said plainly."""

from dataclasses import replace
from pathlib import Path

import pytest

from omlx_server.doctor.finding import Level
from omlx_server.doctor.selftest.prefixes import Eager
from omlx_server.doctor.selftest.session import Session
from omlx_server.doctor.selftest.subject import find_subject
from omlx_server.errors import ModelUnavailable, OmlxError
from tests.doctor.selftest.subjects import SHORT, checked, save_model, settings_for

LITTLE = replace(SHORT, base=100, hits=3, rows=2, row=20, answer=4, decoded=4)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.mark.parametrize("architecture", ["qwen3_next", "gemma3_text"])
def test_recurrent_models_and_those_with_rings_pass(architecture: str, tmp_path: Path) -> None:
    model = save_model(tmp_path / "tiny", architecture)
    found = checked(model, settings_for(tmp_path), LITTLE)
    assert {c.finding.what for c in found.values() if c.finding.level is Level.FAIL} == set()
    assert found["hit: files"].figures["hits"]


def test_a_model_that_runs_one_row_at_a_time(tmp_path: Path) -> None:
    found = checked(save_model(tmp_path / "tiny", "llama4"), settings_for(tmp_path), LITTLE)
    assert found["batch"].finding.says.startswith("one row at a time")
    assert "8 streams" not in found


def test_without_a_cold_tier_and_without_a_cache(model: Path, tmp_path: Path) -> None:
    settings = settings_for(tmp_path, cache={"hot_cache_only": True})
    found = checked(model, settings, LITTLE)
    assert "cache.hot_cache_only is on" in found["hit: files"].finding.says
    assert found["hit: memory"].figures["hits"]
    found = checked(model, settings_for(tmp_path, cache={"enabled": False}), LITTLE)
    assert "cache.enabled is off" in found["hit: memory"].finding.says


def test_a_cache_in_which_nothing_has_room_is_a_warning(model: Path, tmp_path: Path) -> None:
    cache = {"hot_cache_only": True, "hot_cache_max_bytes": "0"}
    found = checked(model, settings_for(tmp_path, cache=cache), LITTLE)["hit: memory"].finding
    assert found.level is Level.WARN
    assert "no prompt was found again" in found.says


def test_blocks_are_read_also_where_computing_them_would_be_faster() -> None:
    rates = Eager()
    rates.note_reading(1, 100.0)
    rates.note_computing(1000, 0.001)
    assert rates.reading_pays(1000, 10**9)


def test_files_that_were_not_read_are_not_called_tested(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Session, "evict_all", lambda self: None)
    found = checked(model, settings_for(tmp_path), LITTLE)["hit: files"].finding
    assert (found.level, "not tested" in found.says) == (Level.WARN, True)


def test_memory_that_is_set_aside_by_hand(model: Path, tmp_path: Path) -> None:
    memory = {"activation_reserve": "512MB"}
    found = checked(model, settings_for(tmp_path, memory=memory), LITTLE)["memory"].finding
    assert (found.level, "by memory.activation_reserve" in found.says) == (Level.OK, True)
    memory = {"activation_reserve": "1000B"}
    found = checked(model, settings_for(tmp_path, memory=memory), LITTLE)["memory"].finding
    assert found.level is Level.FAIL


def test_quantised_keys_and_values(model: Path, tmp_path: Path) -> None:
    settings = settings_for(tmp_path, kv_cache={"scheme": "affine", "bits": 4, "group_size": 32})
    found = checked(model, settings, LITTLE)
    assert not [c for c in found.values() if c.finding.level is Level.FAIL]


def test_nothing_of_the_users_is_touched(model: Path, tmp_path: Path) -> None:
    (tmp_path / "kv").mkdir()
    (tmp_path / "kv" / "steps.json").write_text("{}")
    checked(model, settings_for(tmp_path), LITTLE)
    assert [path.name for path in (tmp_path / "kv").iterdir()] == ["steps.json"]
    assert (tmp_path / "kv" / "steps.json").read_text() == "{}"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("org/later", "org/later is not here yet"),
        ("startr", "There is no model 'startr'"),
        ("starter", "starter is not here yet"),
    ],
)
def test_a_model_that_is_not_here_is_not_downloaded(
    name: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ModelUnavailable, match=words):
        find_subject(name, settings_for(tmp_path))


def test_a_model_that_can_not_be_loaded_is_told_in_one_line(model: Path, tmp_path: Path) -> None:
    broken = save_model(tmp_path / "broken")
    (broken / "model.safetensors").write_bytes(b"\x00" * 64)
    with pytest.raises(OmlxError) as told:
        checked(broken, settings_for(tmp_path))
    assert "\n" not in told.value.message
    with pytest.raises(OmlxError, match="the weights take"):
        checked(model, settings_for(tmp_path, memory={"limit": "1000B"}))
