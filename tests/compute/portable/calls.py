"""Which functions of `compute` call MLX, by their text."""

import ast
from collections.abc import Iterator
from pathlib import Path

import omlx_server

PACKAGE = Path(omlx_server.__file__).parent

# They put nothing into a graph. Attention is noted in our hook of it, kv/dispatch.py.
_NO_OPERATIONS = frozenset(
    {
        "Device",
        "array",
        "async_eval",
        "clear_cache",
        "compile",
        "default_device",
        "device_info",
        "eval",
        "finfo",
        "get_active_memory",
        "get_cache_memory",
        "get_peak_memory",
        "issubdtype",
        "reset_peak_memory",
        "scaled_dot_product_attention",
        "set_cache_limit",
        "set_wired_limit",
        "synchronize",
    }
)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def calling_mlx() -> set[tuple[str, str]]:
    """The path in the package and the qualified name of each function that calls MLX."""
    return {
        (path.relative_to(PACKAGE).as_posix(), name)
        for path in sorted((PACKAGE / "compute").rglob("*.py"))
        for name in _names(ast.parse(path.read_text(encoding="utf-8")), "")
    }


def named(function: str) -> str:
    """The function that a comprehension, a generator or a lambda is written in."""
    return function.partition(".<locals>.<")[0]


def _names(node: ast.AST, inside: str) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            yield from _names(child, f"{inside}{child.name}.")
        elif isinstance(child, _FUNCTIONS):
            yield from _names(child, f"{inside}{child.name}.<locals>.")
        else:
            if _is_call(child) and inside.endswith(".<locals>."):
                yield inside.removesuffix(".<locals>.")
            yield from _names(child, inside)


def _is_call(node: ast.AST) -> bool:
    """Whether this is a call of `mx.name` or `mx.module.name`."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    owner = node.func.value
    if isinstance(owner, ast.Attribute):
        owner = owner.value
    is_mlx = isinstance(owner, ast.Name) and owner.id == "mx"
    return is_mlx and node.func.attr not in _NO_OPERATIONS
