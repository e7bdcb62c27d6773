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

_TAKEN = "a PNG, JPEG, WebP or GIF of up to 20 MB"
# The orientations of EXIF that turn an image by a quarter.
_ON_ITS_SIDE = (5, 6, 7, 8)
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
    """Raises UsageError for a file that a server would not take."""
    # It loads numpy, which no other part of `chat` needs.
    from omlx_server.images.decode import inspect

    name, data = visible(path.name), _read(expanded(path))
    try:
        header = inspect(data)
    except BadRequest as error:
        raise UsageError(f"{name}: {error.message}") from None
    kind = header.kind.value
    width, height = header.width, header.height
    if header.orientation in _ON_ITS_SIDE:
        width, height = height, width
    words = f"{name}: {kind}, {width} x {height} pixels, {decimal(len(data))}"
    encoded = base64.b64encode(data).decode()
    return Image(words, f"data:image/{kind.lower()};base64,{encoded}")


def split(line: str) -> tuple[Path, str]:
    """Return the path at a line's beginning, and the text behind it. Raises UsageError."""
    match = _PATH.match(line)
    if match is None or line[match.end() : match.end() + 1].strip():
        raise UsageError("/image needs a file", hint="/image FILE [TEXT], as in /image ~/cat.png")
    quoted = match[1] or match[2]
    path = quoted or re.sub(r"\\(.)", r"\1", match[3])
    return Path(path), line[match.end() :].strip()


def content(text: str, images: Sequence[Image]) -> str | list[dict[str, Any]]:
    if not images:
        return text
    return [*(image.part for image in images), {"type": "text", "text": text}]


def _read(path: Path) -> bytes:
    name = visible(str(path))
    try:
        about = path.stat()
        if not stat.S_ISREG(about.st_mode):
            raise UsageError(f"{name} is no file", hint=f"give {_TAKEN}")
        if about.st_size > limits.MOST_BYTES:
            size = decimal(about.st_size)
            raise UsageError(f"{name} is too large: {size}", hint=f"give {_TAKEN}")
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{name}: {error.strerror or error}") from None
    except ValueError:  # a NUL
        raise UsageError(f"{name} can't be the name of a file") from None
