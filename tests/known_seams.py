"""Where the texts of a tokenizer can be cut, found once in a process. Tests load the same small
tokenizer hundreds of times, and finding its seams takes longer than all else of that."""

from unittest.mock import _patch, patch

from tokenizers import Tokenizer as Backend

from omlx_server.text.encoding import encoder
from omlx_server.text.encoding.seams import Seams

_known = dict[tuple[str, int], Seams]()


def known_seams() -> "_patch[object]":
    """While it holds, the seams of a tokenizer are looked up: they are a function of what it is.
    Tests of tokenizers themselves do without."""
    return patch.object(encoder, "Seams", _seams)


def _seams(backend: Backend, *, size: int) -> Seams:
    key = backend.to_str(), size
    if key not in _known:
        _known[key] = Seams(backend, size=size)
    return _known[key]
