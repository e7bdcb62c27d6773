"""The port of rank 0."""

from collections.abc import Iterator

import pytest

from tests.engine.cluster.descriptors import nothing_left
from tests.wiring.cluster.port import Port


@pytest.fixture
def port() -> Iterator[Port]:
    with nothing_left():
        port = Port()
        yield port
        port.gathering.close()
