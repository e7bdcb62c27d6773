"""The admin token, in a file beside the user's config; OMLX_ADMIN_TOKEN wins over it. Blocking.
Servers that start at once share one token."""

import os
import re
import secrets
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from omlx_server.errors import ConfigError, PlaceUnusable, system_errors_as
from omlx_server.settings.layers import TOKEN_VARIABLE, USER_CONFIG
from omlx_server.settings.types import own_place
from omlx_server.settings.whole_file import OTHERS, PRIVATE_DIRECTORY, PRIVATE_FILE

_NAME = "admin-token"
_BYTES = 32
_MOST_BYTES = 1024
_TOKEN = re.compile(r"[!-~]{16,512}")  # fit for a header; a power cut leaves zeros


class TokenFileError(PlaceUnusable):
    pass


def token_file() -> Path:
    """Raises TokenFileError without a home directory."""
    try:
        return own_place(USER_CONFIG).with_name(_NAME)
    except ConfigError as error:
        raise TokenFileError(error.message, hint=error.hint) from None


def admin_token(environ: Mapping[str, str] = os.environ) -> str:
    """Return the token. Make the file if it has none, with mode 0600. Raises TokenFileError if
    the file can't be used, ConfigError if OMLX_ADMIN_TOKEN is invalid."""
    if token := _from_environ(environ):
        return token
    path = token_file()
    with system_errors_as(TokenFileError, f"{path} can't be used"):
        if not _read(path):
            _make(path)
        if path.stat().st_mode & OTHERS:
            path.chmod(PRIVATE_FILE)
        return _read(path)


def read_admin_token(environ: Mapping[str, str] = os.environ) -> str:
    """Return the token or "", and change nothing. Raises ConfigError if OMLX_ADMIN_TOKEN is
    invalid."""
    if token := _from_environ(environ):
        return token
    try:
        return _read(token_file())
    except (OSError, ConfigError):
        return ""


def _from_environ(environ: Mapping[str, str]) -> str:
    token = environ.get(TOKEN_VARIABLE, "")
    if token and not _TOKEN.fullmatch(token):
        raise ConfigError(
            f"{TOKEN_VARIABLE} holds no token",
            hint="16 to 512 visible ASCII characters, for example of `openssl rand -hex 24`",
        )
    return token


def _read(path: Path) -> str:
    """Return the token in the file, or "". A named pipe does not block."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return ""
    try:
        token = os.read(fd, _MOST_BYTES).decode("ascii", errors="replace").strip()
    finally:
        os.close(fd)
    return token if _TOKEN.fullmatch(token) else ""


def _make(path: Path) -> None:
    path.parent.mkdir(mode=PRIVATE_DIRECTORY, parents=True, exist_ok=True)
    number, temporary = tempfile.mkstemp(prefix=".admin-", dir=path.parent)
    try:
        with os.fdopen(number, "wb") as file:
            file.write(f"{secrets.token_urlsafe(_BYTES)}\n".encode())
            file.flush()
            os.fsync(number)
        try:
            path.hardlink_to(temporary)
        except FileExistsError:
            if not _read(path):
                Path(temporary).replace(path)
    finally:
        with suppress(FileNotFoundError):
            Path(temporary).unlink()
