"""The amount of work in one slice between the steps of models."""

from omlx_server.compute.hardware import device, device_policy

# One slice takes about as long as a chunk of a prompt in a language model with so many weights.
_CPU_WEIGHTS = 100e6
_GPU_WEIGHTS = 1e9


def slice_products() -> float:
    """Return the number of multiplications in one slice."""
    weights = _CPU_WEIGHTS if device.is_cpu() else _GPU_WEIGHTS
    return device_policy.current().chunk * weights
