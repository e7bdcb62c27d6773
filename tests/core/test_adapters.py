"""An adapter in the keys of blocks."""

from pathlib import Path

from omlx_server.core.adapters import Adapter, digest_of, salted
from omlx_server.core.request import Request, RequestId, SamplingParams

FIRST, SECOND = (Adapter(bytes([n]) * 32, "a", Path(), 4, 1.0, 0) for n in (1, 2))

GOLDEN_SALT = "364bce89047ac6f45cbd70fe2861fa7f2feaa522d7182f4ac7a8da2ec913c7b4"
GOLDEN_DIGEST = "a48bf97e27b31e740c70c45c448a6662348ac17929be75f4575cad36401c8211"


def request(adapter: Adapter | None, salt: bytes) -> Request:
    sampling = SamplingParams(max_tokens=1)
    return Request(RequestId("r"), (1, 2), sampling, salt=salt, adapter=adapter)


def test_each_adapter_of_each_tenant_has_a_salt_of_its_own() -> None:
    salts = [b"", b"one", b"two"]
    found = {
        request(adapter, salt).block_salt for adapter in (None, FIRST, SECOND) for salt in salts
    }
    assert len(found) == 9
    assert {request(None, salt).block_salt for salt in salts} == set(salts)


def test_the_salt_is_the_same_in_any_process() -> None:
    """Else nothing would be found again after a restart."""
    assert salted(b"one", FIRST).hex() == GOLDEN_SALT
    assert digest_of(b"{}", b"\0" * 32).hex() == GOLDEN_DIGEST
