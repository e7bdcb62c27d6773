"""Every architecture of mlx-lm has a tiny config whose model answers, varies and loads from disk.

What is compiled for a CPU goes through a C++ compiler, and costs more than all that runs here.
"""

import ast
import copy
import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import mlx_lm.models
import numpy as np
import pytest
from mlx.utils import tree_flatten
from mlx_lm.models.cache import CacheList, KVCache, make_prompt_cache
from mlx_lm.utils import MODEL_REMAPPING, load_model

from omlx_server.compute.caches import new_caches, why_alone
from omlx_server.compute.codecs.registry import leaves
from omlx_server.compute.quantise import use_rows_of_own_length
from tests.architectures.caches import CACHES
from tests.architectures.configs import ALONE_ONLY, CANNOT_BUILD, CONFIGS, COPIED, CUT_MATTERS
from tests.architectures.table import METAL_ONLY
from tests.tiny_models import VOCAB, make_model, save_tiny

PROMPT = mx.array(np.random.default_rng(0).integers(1, VOCAB, 50))[None]
STEPS = 30
ROWS = (40, 27)  # tokens of the prompts that go together


@pytest.fixture(scope="module", autouse=True)
def interpreted() -> Iterator[None]:
    mx.disable_compile()
    yield
    mx.enable_compile()


@pytest.fixture(scope="module", params=sorted(CONFIGS))
def architecture(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def model(architecture: str) -> nn.Module:
    return make_model(architecture)[0]


def test_every_architecture_has_a_config() -> None:
    named = {config["model_type"] for config in CONFIGS.values()} | {*METAL_ONLY, *CANNOT_BUILD}
    assert _architectures() == {MODEL_REMAPPING.get(name, name) for name in named}
    assert CACHES.keys() | CUT_MATTERS.keys() | ALONE_ONLY.keys() <= CONFIGS.keys()


def test_answers_vary_and_no_cut_of_the_prompt_changes_them(
    architecture: str, model: nn.Module
) -> None:
    cache = make_prompt_cache(model)
    tokens, logits = [], _logits(model, PROMPT, cache)
    for _ in range(STEPS):
        tokens.append(int(mx.argmax(logits)))
        logits = _logits(model, mx.array([tokens[-1:]]), cache)
    assert bool(mx.isfinite(logits).all())
    assert float(mx.abs(logits).max()) < 100
    assert len(set(tokens)) >= 4
    whole = mx.concatenate([PROMPT, mx.array([tokens])], axis=1)
    at_once = _logits(model, whole, make_prompt_cache(model))
    assert bool(mx.allclose(at_once, logits, atol=2e-3)) == (architecture not in CUT_MATTERS)


def test_a_batch_answers_as_each_alone(architecture: str, model: nn.Module) -> None:
    alone_only = architecture.partition("+")[0] in ALONE_ONLY
    try:
        equal = _batch_equals_alone(model)
    except (AttributeError, ValueError):
        assert alone_only
    else:
        assert equal != alone_only


def test_who_fails_in_a_batch_is_served_alone(architecture: str, model: nn.Module) -> None:
    """gemma2 is not: its caches are ours."""
    alone = architecture.partition("+")[0] in ALONE_ONLY.keys() - {"gemma2"}
    starts = architecture == "longcat_flash_ngram"  # fails with a prompt of fewer than n tokens
    assert bool(why_alone(model)) == (alone or starts)


def test_the_end_knows_of_the_beginning(model: nn.Module) -> None:
    other = mx.array(PROMPT)
    other[0, 2] = (other[0, 2] + 50) % VOCAB
    first = _logits(model, PROMPT, make_prompt_cache(model))
    second = _logits(model, other, make_prompt_cache(model))
    assert float(mx.abs(first - second).max()) > 5e-3


def test_has_the_caches_of_its_layers(architecture: str, model: nn.Module) -> None:
    caches = make_prompt_cache(model)
    assert {_name(cache) for cache in caches} == CACHES.get(architecture, {"KVCache"})


def test_keys_and_values_are_held_once(architecture: str) -> None:
    """But where the page says that they are not."""
    model = make_model(architecture)[0]
    left = use_rows_of_own_length(model).plain
    of_its_own = architecture.startswith("deepseek_v41")
    assert (bool(left) or of_its_own) == (architecture.partition("+")[0] in COPIED)
    kinds = {type(leaf) for leaf in leaves(new_caches(model))}
    assert (KVCache in kinds) == bool(left)


def test_loads_from_disk(architecture: str, model: nn.Module, tmp_path: Path) -> None:
    save_tiny(tmp_path, architecture)
    loaded = dict(tree_flatten(load_model(tmp_path)[0].parameters()))
    made = dict(tree_flatten(model.parameters()))
    assert loaded.keys() == made.keys()
    assert [name for name in made if not mx.allclose(loaded[name], made[name], atol=1e-6)] == []
    assert {array.dtype for array in loaded.values()} <= {mx.float32, mx.uint32}


def test_those_of_cannot_build_still_cannot() -> None:
    for name in CANNOT_BUILD:
        with pytest.raises(SystemExit):
            importlib.import_module(f"mlx_lm.models.{name}")


@pytest.mark.skipif(mx.metal.is_available(), reason="has Metal")
@pytest.mark.parametrize("name", METAL_ONLY)
def test_those_of_metal_build_and_need_it(name: str) -> None:
    with pytest.raises(RuntimeError, match="No Metal"):
        _logits(make_model(name)[0], PROMPT, None)


def test_no_model_completes_the_table() -> None:
    before = copy.deepcopy(CONFIGS["gemma3"])
    make_model("gemma3")
    assert CONFIGS["gemma3"] == before


def _logits(model: nn.Module, tokens: mx.array, cache: list[Any] | None) -> mx.array:
    """Of the last token; one model lists more tokens than it has, and forbids them."""
    logits: mx.array = model(tokens, cache=cache)[0, -1, :VOCAB]
    mx.eval(logits)
    return logits


def _batch_equals_alone(model: nn.Module) -> bool:
    rows = [make_prompt_cache(model) for _ in ROWS]
    for row, length in zip(rows, ROWS, strict=True):
        _logits(model, PROMPT[:, :length], row)
    together = [caches[0].merge(list(caches)) for caches in zip(*rows, strict=True)]
    for token in (5, 6):
        batch = model(mx.array([[token]] * len(ROWS)), cache=together)[:, -1, :VOCAB]
        alone = [_logits(model, mx.array([[token]]), row) for row in rows]
        if not mx.allclose(batch, mx.stack(alone), atol=2e-3):
            return False
    return True


def _name(cache: Any) -> str:
    if isinstance(cache, CacheList):
        return f"CacheList({', '.join(_name(inner) for inner in cache.caches)})"
    return type(cache).__name__


def _architectures() -> set[str]:
    """The modules of mlx-lm that name a Model and its arguments, without importing them."""
    [folder] = mlx_lm.models.__path__
    found = set()
    for module in pkgutil.iter_modules([folder]):
        names: set[str] = set()
        for node in ast.parse((Path(folder) / f"{module.name}.py").read_text()).body:
            if isinstance(node, ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.ImportFrom):
                names.update(alias.asname or alias.name for alias in node.names)
        if {"Model", "ModelArgs"} <= names:
            found.add(module.name)
    return found
