"""A medium in an object store or a mounted folder, by obstore. Owned by the I/O thread."""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import timedelta

import obstore
from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import ObjectStore, from_url

from omlx_server.store.mediums.medium import (
    REMOTE_MAX_BYTES,
    Buffer,
    MediumError,
    Name,
    require_fits,
)

HEADS_AT_ONCE = 8
# obstore has one class for most failures: only the error's text, in lower case, says which it is.
# The first row whose words are in it counts.
REASONS = (
    ("kind: timeout", "timeout"),
    ("no space left", "full"),
    ("storagefull", "full"),
    ("quotaexceeded", "full"),
    ("507 insufficient storage", "full"),
    ("read-only file system", "read-only"),
    ("kind: connect", "unreachable"),
    ("kind: interrupted", "unreachable"),
)


class Objects:
    """`timeout`: seconds of an HTTP request. Raises ValueError for an unusable URL."""

    max_bytes = REMOTE_MAX_BYTES

    def __init__(self, url: str, *, timeout: float) -> None:
        try:
            self._store = _open_store(url, timedelta(seconds=timeout))
        except (BaseError, OSError) as error:
            raise ValueError(str(error)) from error
        self._heads = ThreadPoolExecutor(HEADS_AT_ONCE, thread_name_prefix="cold-store-head")

    def get(self, name: Name) -> bytes | None:
        with _as_medium_errors():
            try:
                answer = obstore.get(self._store, _path(name))
                require_fits(answer.meta["size"], self.max_bytes)
                return bytes(answer.bytes())
            except FileNotFoundError:
                return None

    def put(self, name: Name, parts: Sequence[Buffer]) -> None:
        content = b"".join(parts)
        require_fits(len(content), self.max_bytes)
        # One request, so all or nothing.
        with _as_medium_errors():
            obstore.put(self._store, _path(name), content, use_multipart=False)

    def contains_many(self, names: Iterable[Name]) -> set[Name]:
        listed = list(names)
        answers = list(self._heads.map(self._contains, listed))
        return {name for name, is_stored in zip(listed, answers, strict=True) if is_stored}

    def delete(self, name: Name) -> None:
        with _as_medium_errors(), suppress(FileNotFoundError):
            obstore.delete(self._store, _path(name))

    def close(self) -> None:
        self._heads.shutdown(wait=False, cancel_futures=True)

    def _contains(self, name: Name) -> bool:
        with _as_medium_errors():
            try:
                obstore.head(self._store, _path(name))
            except FileNotFoundError:
                return False
            return True


def _open_store(url: str, limit: timedelta) -> ObjectStore:
    if url.startswith("file:"):
        return from_url(url, mkdir=True)
    if url.startswith("memory:"):
        return from_url(url)
    return from_url(
        url,
        # These options override AWS_ALLOW_HTTP; the endpoint's scheme decides.
        client_options={"timeout": limit, "connect_timeout": limit, "allow_http": True},
        retry_config={"max_retries": 0},
    )


def _path(name: Name) -> str:
    return f"{name.namespace}/{name.key[:2]}/{name.key}.safetensors"


@contextmanager
def _as_medium_errors() -> Iterator[None]:
    try:
        yield
    except (BaseError, OSError, ValueError) as error:
        text = str(error)
        # The first line is for people; the client's internals follow.
        brief = text.partition("\n")[0]
        raise MediumError(_reason_of(error, text.lower()), f"object store: {brief}") from error


def _reason_of(error: Exception, text: str) -> str:
    if isinstance(error, (PermissionDeniedError, UnauthenticatedError)):
        return "read-only"
    return next((reason for words, reason in REASONS if words in text), "io")
