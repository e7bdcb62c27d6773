"""Chat templates of 70 published models, from a source package on PyPI that brings them along.

Where OMLX_TEST_MODELS names a directory, the package is kept there and downloaded only once.
"""

import hashlib
import os
import tarfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import httpx
from tokenizers import Tokenizer as Backend

from omlx_server.text.tokenizer import Tokenizer
from tests.text import makers

_FILE = "llama_cpp_python-0.3.36.tar.gz"
_FOLDER = "ec/e9/e7de2b0463ea3ffbf0ede6cb21b58c1258a8f6521aae45ca773a59fe7cf3"
_SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
_MEMBER = "/vendor/llama.cpp/models/templates/"


def published(directory: Path) -> Mapping[str, str]:
    """The source of each template by its name, such as "Qwen3-Coder"."""
    kept = os.environ.get("OMLX_TEST_MODELS")
    path = (Path(kept).expanduser() if kept else directory) / _FILE
    if not path.exists():
        _download(path)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == _SHA256, path
    found: dict[str, str] = {}
    with tarfile.open(path) as archive:
        for member in archive:
            name = member.name.rpartition(_MEMBER)[2]
            if _MEMBER in member.name and name.endswith(".jinja"):
                data = archive.extractfile(member)
                assert data is not None
                found[name.removesuffix(".jinja")] = data.read().decode()
    return found


def _download(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    url = f"https://files.pythonhosted.org/packages/{_FOLDER}/{_FILE}"
    with httpx.stream("GET", url, timeout=60) as answer:
        answer.raise_for_status()
        with path.open("wb") as file:
            for piece in answer.iter_bytes():
                file.write(piece)


@cache
def _byte_level() -> str:
    return makers.byte_level().to_str()


def tokenizer_with(template: str, *controls: str) -> Tokenizer:
    """A small tokenizer with a template; `controls` are tokens of it."""
    backend = Backend.from_str(_byte_level())
    backend.add_special_tokens(list(controls))
    return Tokenizer(
        backend,
        eos_ids=frozenset({1}),
        chat_templates={"default": template},
        template_variables={"bos_token": "<s>", "eos_token": "</s>"},
    )
