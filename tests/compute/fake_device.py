"""A device that runs beside the host, as a GPU does, for tests: the work runs on the CPU backend,
in the order of the other policy, and it is noted what is launched and what is waited for.

A wait is one that would stop the host: for something that was not known to be done before. It
leaves work when more was launched behind it, so that the device is busy while the host goes on.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import ReferenceType, ref

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

from omlx_server.compute.hardware import device, device_policy


@dataclass
class Wait:
    """`late`: what is waited for was not launched before, so the device had stood still."""

    leaves_work: bool
    late: bool


@dataclass
class FakeDevice:
    """Numbers all that is launched, and knows up to which of these all is done."""

    waits: list[Wait] = field(default_factory=list)
    launches: int = 0
    _done: int = 0
    _numbers: dict[int, tuple[ReferenceType[mx.array], int]] = field(default_factory=dict)

    def launch(self, *trees: Any) -> None:
        self.launches += 1
        for array in _arrays(trees):
            self._numbers[id(array)] = ref(array), self.launches

    def wait_for(self, *trees: Any) -> None:
        numbers = [self._number(array) for array in _arrays(trees)]
        late = None in numbers
        if late:
            self.launch(*trees)
        last = self.launches if late else max(filter(None, numbers), default=0)
        if last > self._done:
            self._done = last
            self.waits.append(Wait(last < self.launches, late))

    def _number(self, array: mx.array) -> int | None:
        known, number = self._numbers.get(id(array), (None, 0))
        return number if known is not None and known() is array else None


def _arrays(trees: Any) -> list[mx.array]:
    leaves = dict(tree_flatten(list(trees))).values()
    return [leaf for leaf in leaves if isinstance(leaf, mx.array)]


@contextmanager
def fake_device(policy: device_policy.DevicePolicy = device_policy.GPU) -> Iterator[FakeDevice]:
    """Puts a device with this policy in the place of the real one."""
    fake = FakeDevice()
    launch, wait_for, to_host = device.launch, device.wait_for, device.to_host

    def launched(*trees: Any) -> None:
        fake.launch(*trees)
        launch(*trees)

    def waited(*trees: Any) -> None:
        fake.wait_for(*trees)
        wait_for(*trees)

    def read(array: mx.array) -> Any:
        fake.wait_for(array)
        return to_host(array)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device_policy, "current", lambda: policy)
        patch.setattr(device, "launch", launched)
        patch.setattr(device, "wait_for", waited)
        patch.setattr(device, "to_host", read)
        yield fake
