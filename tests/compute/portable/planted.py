"""As a program it traces functions that look as if they were in a file of `compute`: operations
that a GPU lacks, and one that is left to the CPU on purpose."""

import mlx.core as mx

from tests.compute.portable.calls import PACKAGE
from tests.compute.portable.trace import Trace

FILE = "compute/planted.py"
_SOURCE = """
def factored(x):
    return mx.linalg.qr(x)

def doubled(x):
    return (x.astype(mx.float64) * 2).astype(mx.float32)

def counted(places):
    return mx.zeros(4, dtype=mx.int64).at[places].add(1)

def on_purpose(x):
    return mx.linalg.svd(x, stream=mx.cpu)

def streamed(x):
    with mx.stream(mx.cpu):
        return mx.linalg.eigh(x)
"""


def main() -> None:
    trace = Trace()
    trace.begin()
    planted = dict[str, object]({"mx": mx})
    exec(compile(_SOURCE, str(PACKAGE / FILE), "exec"), planted)
    square = mx.eye(4)
    for name in ("factored", "doubled", "on_purpose", "streamed"):
        planted[name](square)  # type: ignore[operator]
    planted["counted"](mx.array([0, 2]))  # type: ignore[operator]
    trace.write()


if __name__ == "__main__":
    main()
