"""What `omlx-server rank` reads from its standard input."""

import pytest

from omlx_server.cli.serve.rank import secret_in
from omlx_server.errors import UsageError


def test_a_secret_of_a_user_is_a_text_though_it_has_hexadecimal_digits_only() -> None:
    """As `openssl rand -hex 32` makes one: such a rank was refused."""
    assert secret_in("ab12", by_rank_0=False) == b"ab12"
    assert secret_in("a long random text", by_rank_0=False) == b"a long random text"


def test_a_secret_of_rank_0_comes_in_hexadecimal_digits() -> None:
    assert secret_in("ab12", by_rank_0=True) == bytes((0xAB, 0x12))
    with pytest.raises(UsageError, match="leave out --instead-of"):
        secret_in("a long random text", by_rank_0=True)


def test_without_a_secret_there_is_an_error() -> None:
    with pytest.raises(UsageError, match="no secret"):
        secret_in("", by_rank_0=False)
