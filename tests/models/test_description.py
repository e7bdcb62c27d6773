"""What the JSON files of a model say of it, right or wrong."""

import json
from pathlib import Path
from typing import Any

import pytest

from omlx_server.models.description import describe


def recommended(directory: Path, generation: dict[str, Any]) -> Any:
    (directory / "config.json").write_text("{}")
    (directory / "generation_config.json").write_text(json.dumps(generation))
    return describe(directory).recommended


def test_what_the_makers_recommend(tmp_path: Path) -> None:
    said = {"temperature": 1, "top_p": 0.9, "top_k": 20, "min_p": 0.05, "repetition_penalty": 1.1}
    assert recommended(tmp_path, {**said, "eos_token_id": 2, "max_tokens": 7}) == said


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 2.1),
        ("temperature", "1"),
        ("temperature", True),
        ("temperature", None),
        ("top_p", 1.5),
        ("top_k", 20.5),
        ("top_k", -1),
        ("min_p", float("nan")),
        ("repetition_penalty", 0),
    ],
)
def test_what_makes_no_sense_is_left_out(tmp_path: Path, name: str, value: object) -> None:
    assert recommended(tmp_path, {name: value, "seed": 1}) == {}


def test_a_greedy_model_recommends_nothing(tmp_path: Path) -> None:
    assert recommended(tmp_path, {"do_sample": False, "temperature": 0.6}) == {}


@pytest.mark.parametrize("said", ["{", "[]", "[" * 100_000])
def test_what_the_makers_say_unreadably_is_left_out(tmp_path: Path, said: str) -> None:
    assert recommended(tmp_path, {"temperature": 1}) and not describe(tmp_path).ignored
    (tmp_path / "generation_config.json").write_text(said)
    about = describe(tmp_path)
    assert about.recommended == {}
    assert about.ignored.startswith(f"{tmp_path / 'generation_config.json'} can't be read: ")
