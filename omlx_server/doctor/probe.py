"""A program that prints the device as JSON. It is a process of its own, because a wheel of mlx for
another processor ends it without a message."""

import json
import sys

from omlx_server.compute import FAST_BLAS
from omlx_server.compute.hardware import device
from omlx_server.compute.hardware.machine import ram_bytes


def main() -> None:
    facts = {
        "device": device.name(),
        "is_cpu": device.is_cpu(),
        "blas": FAST_BLAS,
        "ram": ram_bytes(),
        "working_set": device.working_set(),
    }
    sys.stdout.write(json.dumps(facts))


if __name__ == "__main__":
    main()
