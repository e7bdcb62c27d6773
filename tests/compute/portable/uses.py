"""The words of a trace: what was put into a graph, and where."""

from typing import NamedTuple


class Use(NamedTuple):
    """A primitive with the dtypes of its inputs and of its outputs, each once. `on_cpu`: its stream
    was given as `mx.cpu`, so that no GPU computes it."""

    operation: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    on_cpu: bool


class Place(NamedTuple):
    """The innermost line of `omlx_server` that led to a primitive: its path in the package, and the
    function. `is_own`: it called MLX itself, and not a layer of MLX or of mlx-lm."""

    path: str
    line: int
    function: str
    is_own: bool
