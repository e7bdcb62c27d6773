"""The admin token, in a file beside the user's config; OMLX_ADMIN_TOKEN wins over it. Servers that
start at the same time share one token. Blocking."""

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

_FILE_NAME = "admin-token"
_RANDOM_BYTES = 32
_MOST_FILE_BYTES = 1024
_TOKEN = re.compile(r"[!-~]{16,512}")  # fit for a header; a power cut leaves zeros


class TokenFileError(PlaceUnusable):
    """The file of the admin token can't be used."""


def token_file() -> Path:
    """Return the path of the file. Raises TokenFileError without a home directory."""
    try:
        return own_place(USER_CONFIG).with_name(_FILE_NAME)
    except ConfigError as error:
        raise TokenFileError(error.message, hint=error.hint) from None


def admin_token(environ: Mapping[str, str] = os.environ) -> str:
    """Return the token. Make the file if it has none, with mode 0600. Raises TokenFileError if
    the file can't be used, ConfigError if OMLX_ADMIN_TOKEN is invalid."""
    if token := _from_environ(environ):
        return token
    path = token_file()
    with system_errors_as(TokenFileError, f"{path} can't be used"):
        if not _read_token(path):
            _make_file(path)
        if path.stat().st_mode & OTHERS:
            path.chmod(PRIVATE_FILE)
        return _read_token(path)


def read_admin_token(environ: Mapping[str, str] = os.environ) -> str:
    """Return the token or "", and change nothing. Raises ConfigError if OMLX_ADMIN_TOKEN is
    invalid."""
    if token := _from_environ(environ):
        return token
    try:
        return _read_token(token_file())
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


def _read_token(path: Path) -> str:
    """Return the token in the file, or "". A named pipe does not block."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return ""
    try:
        token = os.read(fd, _MOST_FILE_BYTES).decode("ascii", errors="replace").strip()
    finally:
        os.close(fd)
    return token if _TOKEN.fullmatch(token) else ""


def _make_file(path: Path) -> None:
    """Write a new token, unless another server has just written one."""
    path.parent.mkdir(mode=PRIVATE_DIRECTORY, parents=True, exist_ok=True)
    fd, temporary = tempfile.mkstemp(prefix=".admin-", dir=path.parent)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(f"{secrets.token_urlsafe(_RANDOM_BYTES)}\n".encode())
            file.flush()
            os.fsync(fd)
        try:
            path.hardlink_to(temporary)
        except FileExistsError:
            if not _read_token(path):
                Path(temporary).replace(path)
    finally:
        with suppress(FileNotFoundError):
            Path(temporary).unlink()
