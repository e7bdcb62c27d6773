"""How models are split over machines, for docs/cluster.md: what the classes of mlx-lm can."""

import inspect
from functools import cache
from importlib import import_module
from importlib.util import find_spec

from mlx_lm.utils import MODEL_REMAPPING

from scripts.reference.markdown import table

HEADS = "within each layer"
LAYERS = "by layers"
NOT = "not at all"


@cache
def by_split(types: tuple[str, ...]) -> dict[str, list[str]]:
    """Those of these `model_type`s, and of the other names that mlx-lm has for the same classes, by
    how they are split."""
    found: dict[str, list[str]] = {HEADS: [], LAYERS: [], NOT: []}
    for type_ in sorted({*types, *MODEL_REMAPPING}, key=str.lower):
        module = f"mlx_lm.models.{MODEL_REMAPPING.get(type_, type_)}"
        if find_spec(module) is not None:
            found[_split_of(module)].append(type_)
    return found


def in_a_table(types: tuple[str, ...]) -> str:
    found = by_split(types)
    rows = [(how, ", ".join(f"`{type_}`" for type_ in found[how])) for how in (HEADS, LAYERS)]
    rows.append((NOT, "all others of [Supported models](architectures.md)"))
    return table(("a model is split", "`model_type` in `config.json`"), rows)


def _split_of(module: str) -> str:
    """As compute/cluster/splitting.py decides, from the classes of the module alone."""
    loaded = import_module(module)
    if hasattr(loaded.Model, "shard"):
        return HEADS
    own = inspect.getmembers(loaded, inspect.isclass)
    layered = any(each.__module__ == module and hasattr(each, "pipeline") for _, each in own)
    return LAYERS if layered else NOT
