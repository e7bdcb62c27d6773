"""Which operations of MLX, with which dtypes, code of `omlx_server` puts into a graph.

MLX's exporter lists the primitives of a graph with the dtypes of their arrays, but not the lines
that made them. So every function of MLX and every method of its arrays is replaced by one that
looks at the graph that it adds, the first time that it is called so: whatever was made before is
computed first. Compilation is off, because a compiled graph is one primitive with a name of its
own. All this lasts as long as the process: a trace has a process to itself.
"""

import json
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from types import FrameType
from typing import Any

import mlx.core as mx

import omlx_server
from omlx_server.compute.hardware import device
from tests.compute.portable.uses import Place, Use

_START = f"{Path(omlx_server.__file__).parent}/"
FAST = {
    "cross_entropy": "CrossEntropy",
    "gated_delta_update": "GatedDeltaUpdate",
    "layer_norm": "LayerNorm",
    "rms_norm": "RMSNorm",
    "rope": "RoPE",
    "scaled_dot_product_attention": "ScaledDotProductAttention",
}
"""What makes one primitive on a GPU. A CPU gets the primitives of its fallback instead."""

_MODULES = (mx, mx.fast, mx.linalg, mx.fft, mx.random)
_TYPES = (mx.array, type(mx.zeros(1).at))
_NAMES = {dtype: name for name, dtype in vars(mx).items() if isinstance(dtype, mx.Dtype)}
# They take functions or files, or tell of arrays without computing any.
_LEFT_OUT = re.compile(
    "^(compile|disable_compile|enable_compile|grad|value_and_grad|checkpoint|jvp|vjp|vmap"
    "|export_.*|exporter|import_function|__(init|new|repr|len|getstate|setstate|format)__)$"
)
_GATHER_MM, _AS_TYPE = mx.gather_mm, mx.array.astype
_NATIVE = ("nb_func", "nb_method")
# So many arrays are computed at once: to compute each alone takes longer than to make it.
_MOST_PENDING = 100
_NO_STATE = re.compile("Unable to get state for primitive (\\w+)")


class Trace:
    """Notes all uses from `begin` on, each with the places that led to it."""

    def __init__(self) -> None:
        self.uses: dict[Use, set[Place]] = defaultdict(set)
        self._export, self._eval = mx.export_function, mx.eval
        self._mapping = self._on_cpu = 0
        self._seen: set[Hashable] = set()
        self._pending: list[mx.array] = []

    def begin(self) -> None:
        """Replace MLX's functions, and have code that asks for the device believe in a GPU: what
        only a CPU gets is of no interest."""
        device.is_cpu = lambda: False
        mx.disable_compile()
        for owner in (*_MODULES, *_TYPES):
            for name, function in list(vars(owner).items()):
                if type(function).__name__ in _NATIVE and not _LEFT_OUT.match(name):
                    setattr(owner, name, self._looking(function, FAST.get(name)))
        mx.vmap, mx.stream = self._vmap(mx.vmap), self._stream(mx.stream)
        if mx.default_device() == mx.Device(mx.cpu):
            mx.gather_mm = self._gather_mm

    def write(self) -> None:
        """Print all uses, each with its places, as JSON."""
        found = [[*use, sorted(places)] for use, places in sorted(self.uses.items())]
        json.dump(found, sys.stdout)

    def _looking(self, function: Callable[..., Any], fast: str | None) -> Callable[..., Any]:
        @wraps(function)
        def looked_at(*args: Any, **kwargs: Any) -> Any:
            if self._mapping:  # what is mapped is seen in the result of the map
                return function(*args, **kwargs)
            place = _place()
            if place is None:
                return function(*args, **kwargs)
            before = _arrays((args, kwargs))
            on_cpu = self._on_cpu > 0 or isinstance(kwargs.get("stream"), mx.DeviceType)
            shapes = tuple([(array.dtype, array.shape) for array in before])
            call = function, place, shapes, on_cpu, _but_arrays((args, kwargs))
            is_new = call not in self._seen  # layers and steps do the same again and again
            if is_new or len(self._pending) > _MOST_PENDING:
                self._compute_pending()
            result = function(*args, **kwargs)
            arrays = _arrays(result) or _arrays((args, kwargs))
            if is_new:
                self._seen.add(call)
                self._note(arrays, place, on_cpu)
                if fast:
                    self.uses[Use(fast, _dtypes(before), _dtypes(arrays), on_cpu)].add(place)
            self._pending += arrays
            return result

        return looked_at

    def _compute_pending(self) -> None:
        self._eval(self._pending)
        self._pending.clear()

    def _note(self, arrays: list[mx.array], place: Place, on_cpu: bool) -> None:
        """Note what the graphs of these arrays are made of."""
        nodes = list[dict[str, Any]]()
        try:
            self._export(nodes.append, lambda: arrays)
        except ValueError as error:  # of a primitive that the exporter does not know, as `Load`
            unknown = _NO_STATE.search(str(error))
            if unknown is None:
                raise
            self.uses[Use(unknown[1], (), _dtypes(arrays), on_cpu)].add(place)
        for node in nodes:
            if node["type"] == "primitive":
                inputs, outputs = (_once(node[side]) for side in ("inputs", "outputs"))
                self.uses[Use(node["name"], inputs, outputs, on_cpu)].add(place)

    def _gather_mm(self, a: mx.array, b: mx.array, *args: Any, **kwargs: Any) -> mx.array:
        """A CPU can multiply gathered matrices in float32 only: what was asked for is noted, and
        the answer is computed in float32."""
        place = _place()
        self._compute_pending()
        if place is not None:
            self._note([_GATHER_MM(a, b, *args, **kwargs)], place, False)
        wide = (_AS_TYPE(one, mx.float32) for one in (a, b))
        product = _AS_TYPE(_GATHER_MM(*wide, *args, **kwargs), a.dtype)
        self._eval(product)
        return product

    def _vmap(self, vmap: Callable[..., Any]) -> Callable[..., Any]:
        def mapping(*args: Any, **kwargs: Any) -> Callable[..., Any]:
            mapped = vmap(*args, **kwargs)

            def call(*inputs: Any) -> Any:
                self._mapping += 1
                try:
                    return mapped(*inputs)
                finally:
                    self._mapping -= 1

            return self._looking(call, None)

        return mapping

    def _stream(self, stream: Callable[..., Any]) -> Callable[..., Any]:
        @contextmanager
        def streaming(of: Any) -> Iterator[None]:
            self._on_cpu += (told := isinstance(of, mx.DeviceType) and of == mx.cpu)
            try:
                with stream(of):
                    yield
            finally:
                self._on_cpu -= told

        return streaming


def _arrays(tree: Any) -> list[mx.array]:
    """All arrays in nested tuples, lists and dicts, of which a layer of MLX is one."""
    if isinstance(tree, mx.array):
        return [tree]
    if isinstance(tree, dict):
        tree = tree.values()
    elif not isinstance(tree, list | tuple):
        return []
    return [array for member in tree for array in _arrays(member)]


def _but_arrays(tree: Any) -> str:
    """What else is in nested tuples, lists and dicts."""
    if isinstance(tree, mx.array):
        return ""
    if isinstance(tree, dict):
        tree = list(tree.items())
    elif not isinstance(tree, list | tuple):
        return repr(tree)
    return f"[{','.join(map(_but_arrays, tree))}]"


def _once(sides: list[tuple[str, Any, mx.Dtype]]) -> tuple[str, ...]:
    return tuple(sorted({_NAMES[dtype] for _, _, dtype in sides}))


def _dtypes(arrays: list[mx.array]) -> tuple[str, ...]:
    return tuple(sorted({_NAMES[array.dtype] for array in arrays}))


def _place() -> Place | None:
    """None for what no code of `omlx_server` has called."""
    frame: FrameType | None = sys._getframe(1)
    is_own = True
    while frame is not None:
        path = frame.f_code.co_filename
        if path.startswith(_START):
            return Place(
                path.removeprefix(_START), frame.f_lineno, frame.f_code.co_qualname, is_own
            )
        is_own = is_own and path == __file__
        frame = frame.f_back
    return None
