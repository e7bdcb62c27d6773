"""GELU in float32 on the CPU backend, ten times as fast as with `mx.erf`.

Phi(-a) = (1 + c1 a + … + c6 a^6) ** -16 / 2 for a >= 0: Abramowitz and Stegun 7.1.28 with
coefficients divided by sqrt(2) ** i; error below 1e-6.
"""

from functools import partial

import mlx.core as mx
import mlx.nn as nn

from omlx_server.compute.hardware import device

_ERF = (0.0705230784, 0.0422820123, 0.0092705272, 0.0001520143, 0.0002765672, 0.0000430638)
_COEFFICIENTS = tuple(erf / 2 ** (i / 2) for i, erf in enumerate(_ERF, start=1))


def gelu(x: mx.array) -> mx.array:
    if device.is_cpu() and x.dtype == mx.float32:
        return rational_gelu(x)
    return nn.gelu(x)


@partial(mx.compile, shapeless=True)
def rational_gelu(x: mx.array) -> mx.array:
    """Return max(x, 0) - |x| Phi(-|x|), which is GELU of x."""
    a = mx.abs(x)
    sum_ = _COEFFICIENTS[-1] * a  # Horner's scheme
    for coefficient in reversed(_COEFFICIENTS[:-1]):
        sum_ = (sum_ + coefficient) * a
    power_16 = mx.square(mx.square(mx.square(mx.square(sum_ + 1))))
    return mx.maximum(x, 0) - a * (0.5 / power_16)
