"""Images for a conversation: files that become parts of a message."""

import base64
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.filesize import decimal

from omlx_server.cli.shell.output import visible
from omlx_server.errors import BadRequest, UsageError
from omlx_server.images import limits
from omlx_server.settings.types import expanded

_ACCEPTED = "a PNG, JPEG, WebP or GIF of up to 20 MB"
# The orientations of EXIF that swap width and height.
_ORIENTATIONS_ON_SIDE = (5, 6, 7, 8)
# A path in quotes, or up to a blank without a backslash, as terminals write a dropped file.
_PATH = re.compile(r"""'([^']+)'|"([^"]+)"|((?:\\.|[^\\\s])+)""")


@dataclass(frozen=True, slots=True)
class Image:
    """An image of a file. `words` describe it; `url` is a data URL."""

    words: str
    url: str = field(repr=False)

    @property
    def part(self) -> dict[str, Any]:
        return {"type": "image_url", "image_url": {"url": self.url}}


def read_image(path: Path) -> Image:
    """Read an image. Raises UsageError for a file that a server would not take."""
    # This import loads numpy, which no other part of `chat` needs.
    from omlx_server.images.decode import inspect

    name, data = visible(path.name), _read_bytes(expanded(path))
    try:
        header = inspect(data)
    except BadRequest as error:
        raise UsageError(f"{name}: {error.message}") from None
    kind = header.kind.value
    width, height = header.width, header.height
    if header.orientation in _ORIENTATIONS_ON_SIDE:
        width, height = height, width
    words = f"{name}: {kind}, {width} x {height} pixels, {decimal(len(data))}"
    encoded = base64.b64encode(data).decode()
    return Image(words, f"data:image/{kind.lower()};base64,{encoded}")


def split_path(line: str) -> tuple[Path, str]:
    """Return the path at a line's beginning, and the text behind it. Raises UsageError."""
    match = _PATH.match(line)
    if match is None or line[match.end() : match.end() + 1].strip():
        raise UsageError("/image needs a file", hint="/image FILE [TEXT], as in /image ~/cat.png")
    quoted, unquoted = match[1] or match[2], match[3]
    path = quoted or re.sub(r"\\(.)", r"\1", unquoted)  # without its backslashes
    return Path(path), line[match.end() :].strip()


def message_content(text: str, images: Sequence[Image]) -> str | list[dict[str, Any]]:
    if not images:
        return text
    return [*(image.part for image in images), {"type": "text", "text": text}]


def _read_bytes(path: Path) -> bytes:
    name = visible(str(path))
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise UsageError(f"{name} is no file", hint=f"give {_ACCEPTED}")
        if status.st_size > limits.MOST_BYTES:
            size = decimal(status.st_size)
            raise UsageError(f"{name} is too large: {size}", hint=f"give {_ACCEPTED}")
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{name}: {error.strerror or error}") from None
    except ValueError:  # a NUL
        raise UsageError(f"{name} can't be the name of a file") from None
