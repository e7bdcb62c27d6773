"""Byte sizes as they are shown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omlx_server.settings.types import format_size, parse_size

_SIZES = st.builds(
    lambda count, base, power: count * base**power,
    st.integers(0, 1000),
    st.sampled_from((1000, 1024)),
    st.integers(0, 4),
)


@given(_SIZES | st.integers(0, 2**45))
def test_a_written_size_reads_back_the_same(size: int) -> None:
    assert parse_size(format_size(size)) == size


@pytest.mark.parametrize(
    "text",
    ["0B", "1B", "1000B", "50GB", "1500MB", "2TB", "20MB", "1KiB", "8MiB", "3GiB", "1000GiB"],
)
def test_a_size_is_shown_as_people_write_it(text: str) -> None:
    size = parse_size(text)
    assert isinstance(size, int)
    assert format_size(size) == text
