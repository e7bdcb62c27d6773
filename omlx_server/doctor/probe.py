"""A program that prints the device as JSON. It is a process of its own, because a wheel of mlx for
another processor ends it without a message."""

import json
import sys
from dataclasses import asdict

from omlx_server.compute import FAST_BLAS
from omlx_server.compute.hardware import device
from omlx_server.compute.hardware.heap import ram_bytes
from omlx_server.doctor.software import Device


def device_here() -> Device:
    return Device(device.name(), device.is_cpu(), FAST_BLAS, ram_bytes(), device.working_set())


def main() -> None:
    sys.stdout.write(json.dumps(asdict(device_here())))


if __name__ == "__main__":
    main()
