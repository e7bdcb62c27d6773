"""Which dtypes the Metal and CUDA backends of MLX take for an operation.

The facts are from MLX's repository at commit 846d1762 (August 2026, after 0.32.1), in the files
named below, which are in mlx/backend/. No later commit was at hand, so they were compared with the
wheels of 0.32.4: with the names of the kernels in mlx.metallib of mlx-metal, and with the kernels
and messages in libmlx.so of mlx-cuda-12. What is not in the table may be there all the same: look
it up in the same places.

No backend takes float64 on a GPU: mlx/array.cpp refuses it for every operation.
"""

from collections.abc import Iterator
from dataclasses import dataclass

MLX = "0.32.4"

BOOL = frozenset({"bool_"})
INTEGERS = frozenset(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
FLOATS = frozenset({"float16", "bfloat16", "float32"})
COMPLEX = frozenset({"complex64"})
ALL = BOOL | INTEGERS | FLOATS | COMPLEX
WORDS = frozenset({"uint32"})
BYTES = frozenset({"uint8"})
EIGHT_BYTES = frozenset({"int64", "uint64", "complex64"})


@dataclass(frozen=True, slots=True)
class Takes:
    """The dtypes that a backend takes and gives, and `words` that say so on the page."""

    inputs: frozenset[str]
    outputs: frozenset[str]
    words: str


@dataclass(frozen=True, slots=True)
class Lacks:
    """A backend that has the operation for no dtype: `words` say what becomes of it. `harmless`:
    MLX itself computes it on the CPU then."""

    words: str
    harmless: bool = False


@dataclass(frozen=True, slots=True)
class Operation:
    metal: Takes | Lacks
    cuda: Takes | Lacks
    source: str

    def backends(self) -> Iterator[tuple[str, Takes | Lacks]]:
        yield "Metal", self.metal
        yield "CUDA", self.cuda


def _same(dtypes: frozenset[str], words: str) -> Takes:
    return Takes(dtypes, dtypes, words)


ANY = _same(ALL, "any")
NO_BOOL = _same(INTEGERS | FLOATS | COMPLEX, "any but bool")
REAL = _same(INTEGERS | FLOATS, "integers, floats")
BITS = _same(BOOL | INTEGERS, "bool, integers")
INEXACT = _same(FLOATS | COMPLEX, "floats, complex")
FLOAT = _same(FLOATS, "floats")
COMPARES = Takes(ALL, BOOL, "any")
ONLY_BOOL = _same(BOOL, "bool")
ORDERS = Takes(ALL, WORDS, "any")
ORDERS_NO_BOOL = Takes(ALL - BOOL, WORDS, "any but bool")
CHOICE = Takes(BOOL | INTEGERS | FLOATS, WORDS, "bool, integers, floats")
WITH_INDICES = Takes(FLOATS | INTEGERS, FLOATS, "floats")
QUANTISED = Takes(FLOATS | WORDS, FLOATS, "floats; 2, 3, 4, 5, 6, 8 bits; groups of 32, 64, 128")
QUANTISES = Takes(
    FLOATS | WORDS, FLOATS | WORDS, "floats; 2, 3, 4, 5, 6, 8 bits; groups of 32, 64, 128"
)
UP_TO_4_BYTES = Takes(ALL, ALL - EIGHT_BYTES, "any of up to 4 bytes")
NO_FACTOR = Lacks("none: throws")

# Names, what both backends take, and the files that say so.
_ALIKE: tuple[tuple[str, Takes | Lacks, str], ...] = (
    (
        "AsType Broadcast Concatenate Contiguous Copy Depends ExpandDims Flatten Full Pad Reshape"
        " Slice Split Squeeze StopGradient Transpose Unflatten View",
        ANY,
        "gpu/primitives.cpp, metal/kernels/copy.metal, cuda/copy.cu",
    ),
    ("SliceUpdate Gather GatherAxis", ANY, "metal/indexing.cpp, cuda/indexing.cpp"),
    ("Select", ANY, "metal/kernels/ternary.metal, cuda/ternary.cu"),
    (
        "Add Divide FloorDivide Maximum Minimum Multiply Power Remainder Subtract",
        ANY,
        "metal/kernels/binary.metal, cuda/binary/",
    ),
    (
        "Equal Greater GreaterEqual Less LessEqual NotEqual",
        COMPARES,
        "metal/kernels/binary.metal, cuda/binary/",
    ),
    ("LogAddExp", INEXACT, "metal/kernels/binary.metal, cuda/binary/log_add_exp.cu"),
    ("LogicalAnd LogicalOr", ONLY_BOOL, "metal/kernels/binary.metal, cuda/binary/"),
    ("BitwiseBinary", BITS, "metal/kernels/binary.metal, cuda/binary/bitwise_binary.cu"),
    ("Abs Negative Sign Square", NO_BOOL, "metal/kernels/unary.metal, cuda/unary/"),
    ("Ceil Floor", REAL, "metal/kernels/unary.metal, cuda/unary/"),
    (
        "Cos Cosh Exp Log Log1p Round Sin Sinh Sqrt Tan Tanh",
        INEXACT,
        "metal/kernels/unary.metal, cuda/unary/",
    ),
    ("Erf ErfInv Expm1 Sigmoid", FLOAT, "metal/kernels/unary.metal, cuda/unary/"),
    ("LogicalNot", ONLY_BOOL, "metal/kernels/unary.metal, cuda/unary/logical_not.cu"),
    (
        "FromFP8",
        Takes(BYTES, FLOATS, "floats"),
        "metal/kernels/unary.metal, cuda/quantized/convert_fp8.cu",
    ),
    (
        "ToFP8",
        Takes(FLOATS, BYTES, "floats"),
        "metal/kernels/unary.metal, cuda/quantized/convert_fp8.cu",
    ),
    ("Reduce", ANY, "metal/kernels/reduce.metal, cuda/reduce.cu"),
    ("ArgReduce", CHOICE, "metal/kernels/arg_reduce.metal, cuda/arg_reduce.cu"),
    ("Scan", ANY, "metal/kernels/scan.metal, cuda/scan.cu"),
    ("Softmax", FLOAT, "metal/kernels/softmax.metal, cuda/softmax.cu"),
    ("LogSumExp", FLOAT, "metal/kernels/logsumexp.metal, cuda/logsumexp.cu"),
    ("LayerNorm", FLOAT, "metal/kernels/layer_norm.metal, cuda/layer_norm.cu"),
    ("RMSNorm", FLOAT, "metal/kernels/rms_norm.metal, cuda/rms_norm.cu"),
    ("RoPE", WITH_INDICES, "metal/kernels/rope.metal, cuda/rope.cu"),
    (
        "ScaledDotProductAttention",
        Takes(FLOATS | BOOL, FLOATS, "floats"),
        "{metal,cuda}/scaled_dot_product_attention.cpp",
    ),
    ("Hadamard", FLOAT, "metal/hadamard.cpp, cuda/hadamard.cu"),
    ("Matmul", INEXACT, "metal/matmul.cpp, cuda/matmul.cpp"),
    ("AddMM", FLOAT, "metal/matmul.cpp, cuda/matmul.cpp"),
    ("GatherMM", WITH_INDICES, "metal/matmul.cpp, cuda/matmul.cpp"),
    ("QuantizedMatmul GatherQMM", QUANTISED, "metal/quantized.cpp, cuda/quantized/quantized.cpp"),
    ("Quantize", QUANTISES, "metal/quantized.cpp, cuda/quantized/affine_quantize.cu"),
    ("Convolution", FLOAT, "metal/conv.cpp, cuda/conv.cpp"),
    ("Arange", REAL, "metal/kernels/arange.metal, cuda/arange.cu"),
    (
        "RandomBits",
        Takes(WORDS, frozenset({"uint8", "uint16", "uint32"}), "unsigned integers"),
        "metal/kernels/random.metal, cuda/random.cu",
    ),
    ("QRF SVD Inverse Eig Eigh LUF", NO_FACTOR, "metal/primitives.cpp, cuda/primitives.cpp"),
)

_SORTS = "metal/kernels/sort.metal, cuda/sort.cu"
# What they don't take alike.
_APART = {
    "Scatter": Operation(UP_TO_4_BYTES, ANY, "{metal,cuda}/indexing.cpp"),
    "ScatterAxis": Operation(UP_TO_4_BYTES, ANY, "{metal,cuda}/indexing.cpp"),
    "Sort": Operation(NO_BOOL, ANY, _SORTS),
    "Partition": Operation(NO_BOOL, ANY, _SORTS),
    "ArgSort": Operation(ORDERS_NO_BOOL, ORDERS, _SORTS),
    "ArgPartition": Operation(ORDERS_NO_BOOL, ORDERS, _SORTS),
    # Of mlx-lm, written for the device that it runs on: a trace on a GPU has it.
    "CustomKernel": Operation(ANY, ANY, "kernels of mlx-lm"),
    "Load": Operation(
        Lacks("read by the CPU", harmless=True), ANY, "metal/primitives.cpp, cuda/load.cpp"
    ),
}

TABLE: dict[str, Operation] = {
    name: Operation(takes, takes, source)
    for names, takes, source in _ALIKE
    for name in names.split()
} | _APART
