"""Counts what a computation launches, in the graph that MLX has of it before it runs."""

import io

import mlx.core as mx

VIEWS = ("Broadcast", "Reshape", "Transpose", "ExpandDims", "Squeeze", "Slice", "Split")
"""What computes nothing, or only says where numbers are."""


def kernels(*arrays: mx.array) -> list[str]:
    """The names of the kernels that these arrays take, which must not be computed yet."""
    graph = io.StringIO()
    mx.export_to_dot(graph, *arrays)
    named = [line.split('"')[1] for line in graph.getvalue().splitlines() if "[label" in line]
    return [name for name in named if name not in VIEWS]
