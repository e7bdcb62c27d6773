"""Which draft model a model has, and whether it reads text as that model does."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from omlx_server.errors import ModelUnavailable
from omlx_server.models.locate import Located
from omlx_server.settings import Settings
from omlx_server.text.tokenizer import Tokenizer
from omlx_server.wiring.draft_model import (
    check_vocabulary,
    draft_model_bytes,
    draft_model_for,
    draft_model_of,
)
from tests.models.directories import make
from tests.text import makers

LARGE, SMALL = 4000, 1000
"""Bytes of the weights of org/large and org/small."""


@pytest.fixture
def large(tmp_path: Path) -> Located:
    """Beside a model that is smaller, and one that is not whole."""
    make(tmp_path / "org" / "large", weights=LARGE)
    make(tmp_path / "org" / "small", weights=SMALL)
    make(tmp_path / "org" / "half", weights=0)
    (tmp_path / "org" / "half" / "model.safetensors").unlink()
    return Located(tmp_path / "org" / "large", ("org/large", "large"))


def settings(large: Located, drafter: str, mode: str = "auto", **models: Any) -> Settings:
    """With a draft model for every model."""
    dirs = [str(large.path.parent.parent)]
    return Settings.of(
        {
            "models": {"dirs": dirs, "use_hf_cache": False, **models},
            "speculation": {"mode": mode, "draft_model": drafter},
        }
    )


ALIASES = {"little": "tiny", "tiny": "org/small", "itself": "large"}


@pytest.mark.parametrize("mode", ["auto", "draft"])
@pytest.mark.parametrize("name", ["org/small", "small", "little"])
def test_it_is_found_by_any_name_of_it(large: Located, name: str, mode: str) -> None:
    set_so = settings(large, name, mode, aliases=ALIASES)
    found = draft_model_of(large, set_so)
    assert found is not None
    assert found.path == large.path.parent / "small"
    assert draft_model_bytes(large, set_so) == SMALL


def test_it_may_be_a_path(large: Located) -> None:
    path = large.path.parent / "small"
    set_so = settings(large, str(path))
    found = draft_model_of(large, set_so)
    assert found is not None and found.path == path
    assert draft_model_bytes(large, set_so) == SMALL


@pytest.mark.parametrize("mode", ["off", "ngram", "heads"])
def test_a_mode_without_use_for_it_looks_for_none(large: Located, mode: str) -> None:
    set_so = settings(large, "org/small", mode)
    assert draft_model_of(large, set_so) is None
    assert draft_model_bytes(large, set_so) == 0


def test_a_model_may_have_its_own_or_none(large: Located) -> None:
    table = {"speculation": {"draft_model": ""}}
    set_so = settings(large, "org/small", overrides={"large": table})
    assert draft_model_of(large, set_so) is None
    own = {"large": {"speculation": {"draft_model": "org/small"}}}
    found = draft_model_of(large, settings(large, "", overrides=own))
    assert found is not None and found.names[0] == "org/small"


def test_a_name_that_no_model_has_is_told(large: Located) -> None:
    set_so = settings(large, "smal")
    with pytest.raises(ModelUnavailable, match="There is no model 'smal'") as error:
        draft_model_of(large, set_so)
    assert "small" in error.value.hint
    assert draft_model_bytes(large, set_so) == 0


def test_one_that_is_not_whole_has_no_bytes_yet(large: Located) -> None:
    set_so = settings(large, "org/half")
    with pytest.raises(ModelUnavailable):
        draft_model_of(large, set_so)
    assert draft_model_bytes(large, set_so) == 0


@pytest.mark.parametrize("name", ["org/large", "large", "itself"])
def test_no_model_drafts_for_itself(large: Located, name: str) -> None:
    with pytest.raises(ModelUnavailable, match="the draft model of org/large is this model itself"):
        draft_model_of(large, settings(large, name, aliases=ALIASES))


def tokenizer(path: Path, change: Callable[[dict[str, Any]], None] | None = None) -> Tokenizer:
    """A byte-level tokenizer, with a change in its file."""
    makers.save(path, "byte_level")
    file = path / "tokenizer.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    if change is not None:
        change(content)
    file.write_text(json.dumps(content), encoding="utf-8")
    return Tokenizer.load(path)


def with_more(content: dict[str, Any]) -> None:
    """A token behind the others."""
    last = content["added_tokens"][-1]
    content["added_tokens"].append({**last, "id": last["id"] + 1, "content": "<more>"})


def exchanged(content: dict[str, Any]) -> None:
    """Two tokens have each other's ids."""
    vocab = content["model"]["vocab"]
    vocab["the"], vocab["a"] = vocab["a"], vocab["the"]


def unmerged(content: dict[str, Any]) -> None:
    """The same tokens, of which texts get only bytes."""
    content["model"]["merges"] = []


def test_a_vocabulary_that_is_the_same_passes(tmp_path: Path) -> None:
    own, more = tokenizer(tmp_path / "own"), tokenizer(tmp_path / "more", with_more)
    check_vocabulary(own, tokenizer(tmp_path / "same"), "same")
    check_vocabulary(own, more, "more")
    check_vocabulary(more, own, "own")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (exchanged, r"the token 'a' has the id \d+ here, \d+ there"),
        (unmerged, "it reads 'The quick brown fox ' as other tokens"),
    ],
)
def test_another_vocabulary_is_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], why: str
) -> None:
    own, other = tokenizer(tmp_path / "own"), tokenizer(tmp_path / "other", change)
    says = f"the draft model org/other has another vocabulary: {why}"
    with pytest.raises(ModelUnavailable, match=says) as error:
        check_vocabulary(own, other, "org/other")
    assert "\n" not in error.value.message


@pytest.mark.parametrize("family", ["flagged", "llama", "metaspace"])
def test_so_is_that_of_another_family(tmp_path: Path, family: str) -> None:
    own = tokenizer(tmp_path / "own")
    other = Tokenizer.load(makers.save(tmp_path / "other", family))
    for pair in ((own, other), (other, own)):
        with pytest.raises(ModelUnavailable, match="has another vocabulary"):
            check_vocabulary(*pair, "org/other")


def save_family(tmp_path: Path) -> Located:
    """A model beside one of the same vocabulary, and one of another."""
    for name, change in (("large", None), ("small", None), ("other", exchanged)):
        path = make(tmp_path / "org" / name)
        tokenizer(path, change)
    return Located(tmp_path / "org" / "large", ("org/large", "large"))


UNFIT = [
    ("other", "the draft model org/other has another vocabulary"),
    ("large", "the draft model of org/large is this model itself"),
    ("nowhere", "There is no model 'nowhere'"),
]


def test_one_that_fits_is_taken(tmp_path: Path) -> None:
    model = save_family(tmp_path)
    own = Tokenizer.load(model.path)
    for strict in (False, True):
        found = draft_model_for(model, own, settings(model, "small"), strict=strict)
        assert found is not None and found.names[0] == "org/small"
        assert draft_model_for(model, own, settings(model, ""), strict=strict) is None


@pytest.mark.parametrize(("name", "why"), UNFIT)
def test_one_for_all_models_is_left_out_where_it_does_not_fit(
    tmp_path: Path, name: str, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The server does not begin with it, though."""
    model = save_family(tmp_path)
    own, for_all = Tokenizer.load(model.path), settings(model, name)
    assert draft_model_for(model, own, for_all, strict=False) is None
    [record] = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage().startswith(f"org/large has no draft model: {why}")
    with pytest.raises(ModelUnavailable, match=why):
        draft_model_for(model, own, for_all, strict=True)


@pytest.mark.parametrize(("name", "why"), UNFIT)
def test_one_for_this_model_has_to_fit(tmp_path: Path, name: str, why: str) -> None:
    model = save_family(tmp_path)
    table = {"large": {"speculation": {"draft_model": name}}}
    with pytest.raises(ModelUnavailable, match=why):
        draft_model_for(
            model, Tokenizer.load(model.path), settings(model, "", overrides=table), strict=False
        )
