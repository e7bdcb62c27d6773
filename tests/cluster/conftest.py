"""The tiny model of the API tests, and groups of ranks that several files ask."""

from collections.abc import Iterator

import pytest

from tests.api.conftest import tiny_models
from tests.cluster.group import Group, group

__all__ = ["tiny_models"]


@pytest.fixture(scope="package")
def two() -> Iterator[Group]:
    with group(2) as made:
        yield made


@pytest.fixture(scope="package")
def three() -> Iterator[Group]:
    with group(3) as made:
        yield made


@pytest.fixture(scope="package")
def four() -> Iterator[Group]:
    with group(4) as made:
        yield made
