"""The server's own token: who can read it may load and unload models. A file of this user, beside
the user's config; OMLX_ADMIN_TOKEN wins over it. Blocking.

The file comes into being whole, so nobody reads half of a token, and the first of two servers that
start at once makes it for both.
"""

import os
import re
import secrets
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from omlx_server.errors import ConfigError, PlaceUnusable
from omlx_server.settings.layers import TOKEN_VARIABLE, USER_CONFIG
from omlx_server.settings.types import expanded

_NAME = "admin-token"
_BYTES = 32
_MOST_BYTES = 1024
_TOKEN = re.compile(r"[!-~]{16,512}")  # it travels in a header; zeros are what a power cut leaves
_PRIVATE_FILE = 0o600
_PRIVATE_DIRECTORY = 0o700
_OTHERS = 0o077


class TokenFileError(PlaceUnusable):
    """The file can't be made or read."""


def token_file() -> Path:
    """Raises TokenFileError where this user has no home."""
    try:
        return expanded(USER_CONFIG).with_name(_NAME)
    except ConfigError as error:
        raise TokenFileError(error.message, hint=error.hint) from None


def admin_token(environ: Mapping[str, str] = os.environ) -> str:
    """The token, made when it is missing or damaged.

    Raises:
        TokenFileError: the file can't be made or read.
        ConfigError: the variable holds no token.
    """
    given = _from_environ(environ)
    if given:
        return given
    path = token_file()
    try:
        if not _read(path):
            _make(path)
        if path.stat().st_mode & _OTHERS:
            path.chmod(_PRIVATE_FILE)
        return _read(path)
    except OSError as error:
        raise TokenFileError(f"{path} can't be used: {error.strerror or error}") from None


def read_admin_token(environ: Mapping[str, str] = os.environ) -> str:
    """The same without making one: empty when it is missing, damaged or not ours to read.

    Raises:
        ConfigError: the variable holds no token.
    """
    given = _from_environ(environ)
    if given:
        return given
    try:
        return _read(token_file())
    except (OSError, ConfigError):
        return ""


def _from_environ(environ: Mapping[str, str]) -> str:
    given = environ.get(TOKEN_VARIABLE, "")
    if given and not _TOKEN.fullmatch(given):
        raise ConfigError(
            f"{TOKEN_VARIABLE} holds no token",
            hint="16 to 512 visible ASCII characters, for example of `openssl rand -hex 24`",
        )
    return given


def _read(path: Path) -> str:
    """Empty when it is not there, or holds no token. A pipe in its place makes nobody wait."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return ""
    try:
        found = os.read(fd, _MOST_BYTES).decode("ascii", errors="replace").strip()
    finally:
        os.close(fd)
    return found if _TOKEN.fullmatch(found) else ""


def _make(path: Path) -> None:
    """Put a new one there, unless somebody was faster."""
    path.parent.mkdir(mode=_PRIVATE_DIRECTORY, parents=True, exist_ok=True)
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
