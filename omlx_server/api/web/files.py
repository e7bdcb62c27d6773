"""The files of the page, as they are sent: with a tag of their content, and compressed where that
is shorter. Blocking; any thread."""

import gzip
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "web"
INDEX = "index.html"
_MEDIA = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
    ".json": "application/json",
    ".png": "image/png",
    ".woff2": "font/woff2",
}
_PLAIN = "text/plain"
_COMPRESSED = ("text/", "image/svg+xml", "application/json")
_PART = re.compile(r"[A-Za-z0-9_][\w.-]*", re.ASCII)
# A version or a digest in a name: such a file never changes.
_VERSIONED = re.compile(r"[-.](\d+\.\d+\.\d+|[0-9a-f]{8,64})\.\w+$")


@dataclass(frozen=True, slots=True)
class WebFile:
    """One file. `tag` names its content; `packed` is `data` as gzip, None where that is no shorter.
    An `immutable` file has a version or a digest in its name."""

    media: str
    data: bytes
    packed: bytes | None
    tag: str
    immutable: bool


class WebFiles:
    """The files below a `folder`. A file that has changed is read again."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._folder = folder
        self._read: dict[str, tuple[tuple[int, int], WebFile]] = {}

    def find(self, name: str) -> WebFile | None:
        """The file of a path such as `style/base.css`; None where there is none. No path leads out
        of the folder, nor to a file whose name begins with a dot."""
        if not all(_PART.fullmatch(part) for part in name.split("/")):
            return None
        path = self._folder / name
        try:
            found = path.stat()
            mark = found.st_mtime_ns, found.st_size
            known = self._read.get(name)
            if known is None or known[0] != mark:
                known = self._read[name] = mark, _file(name, path.read_bytes())
        except OSError:  # also a folder
            return None
        return known[1]

    def media(self) -> tuple[str, ...]:
        """The media types of all files that are there, in order."""
        paths = (path for path in self._folder.rglob("*") if path.is_file())
        return tuple(sorted({_media_of(path.name) for path in paths}))


def _file(name: str, data: bytes) -> WebFile:
    media = _media_of(name)
    packed = gzip.compress(data, mtime=0) if media.startswith(_COMPRESSED) else data
    return WebFile(
        media,
        data,
        packed if len(packed) < len(data) else None,
        hashlib.sha256(data).hexdigest()[:32],
        bool(_VERSIONED.search(name)),
    )


def _media_of(name: str) -> str:
    return _MEDIA.get(Path(name).suffix, _PLAIN)
