"""What tests of arrays share."""

from dataclasses import replace
from zlib import crc32

import pytest

from omlx_server.compute.hardware import device_policy


@pytest.fixture
def either_order(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """One half of the tests run in the order of a device beside the host. Which half a test is in
    stays the same as long as it keeps its name."""
    if crc32(request.node.nodeid.encode()) % 2:
        policy = replace(device_policy.CPU, beside_host=True)
        monkeypatch.setattr(device_policy, "current", lambda: policy)
