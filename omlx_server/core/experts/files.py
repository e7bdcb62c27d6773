"""Finds the tensors of experts in a model's files, by their names. Pure."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

# mlx-lm stacks the experts of a layer: `...switch_mlp.gate_proj.weight`; others have one tensor
# for each: `...experts.7.gate_proj.weight`, and Mixtral `...experts.7.w1.weight`.
_STACKED = re.compile(r"(?:^|\.)(?:experts|switch_mlp|switch_glu)\.[^.\d]")
_SINGLE = re.compile(r"(?P<block>.+)\.experts\.(?P<expert>\d+)\.(?P<parameter>.+)")
_PROJECTIONS = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor at the byte `start` of a file."""

    file: str
    start: int
    nbytes: int
    dtype: str  # as safetensors names it: "BF16"
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ExpertSizes:
    """Sizes of a mixture."""

    nbytes: int  # of one expert of every layer together
    experts: int  # of a layer


class ExpertFiles:
    """The stored tensors of one model, by name."""

    def __init__(self, tensors: Mapping[str, StoredTensor]) -> None:
        self._stacked = {name: one for name, one in tensors.items() if _STACKED.search(name)}
        self._single = dict[str, dict[int, StoredTensor]]()
        for name, tensor in tensors.items():
            if match := _SINGLE.fullmatch(name):
                projection, _, rest = match["parameter"].partition(".")
                projection = _PROJECTIONS.get(projection, projection)
                stem = f"{match['block']}.{projection}.{rest}"
                self._single.setdefault(stem, {})[int(match["expert"])] = tensor

    @cached_property
    def sizes(self) -> ExpertSizes | None:
        stacked = [(one.nbytes, one.shape[0]) for one in self._stacked.values() if one.shape]
        single = [
            (sum(one.nbytes for one in by_expert.values()), len(by_expert))
            for by_expert in self._single.values()
        ]
        experts = max((count for _, count in (*stacked, *single)), default=0)
        if experts < 2:
            return None
        total = sum(nbytes for nbytes, _ in (*stacked, *single))
        return ExpertSizes(-(-total // experts), experts)

    def experts_of(self, layer: str, parameter: str) -> Sequence[StoredTensor]:
        """Return a tensor for each expert: of the layer `model.layers.0.mlp.switch_mlp`, say, and
        its `gate_proj.weight`. Raises ValueError if the files have none."""
        if stacked := self._stacked.get(f"{layer}.{parameter}"):
            return _split(stacked)
        block = layer.rpartition(".")[0]
        by_expert = self._single.get(f"{block}.{parameter}", {})
        if not by_expert or sorted(by_expert) != list(range(len(by_expert))):
            raise ValueError(f"{layer}.{parameter} is not in its files as experts")
        return [by_expert[number] for number in range(len(by_expert))]


def _split(stacked: StoredTensor) -> list[StoredTensor]:
    count, *shape = stacked.shape
    nbytes = stacked.nbytes // count
    if nbytes * count != stacked.nbytes or not prod(shape):
        raise ValueError("its experts are of no whole number of bytes")
    return [
        StoredTensor(stacked.file, stacked.start + i * nbytes, nbytes, stacked.dtype, tuple(shape))
        for i in range(count)
    ]
