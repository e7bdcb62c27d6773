"""The files of the page, tagged by content, compressed, with headers against foreign scripts.
Reading them blocks."""

import gzip
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from starlette.datastructures import Headers
from starlette.responses import Response

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
# A file with a version or a digest in its name never changes.
_VERSIONED = re.compile(r"[-.](\d+\.\d+\.\d+|[0-9a-f]{8,64})\.\w+$")

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data: blob:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
_SAFE = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_KEPT = "public, max-age=31536000, immutable"
_ASKED = "no-cache"
_PAGE = ("text/html", "application/xhtml+xml")


@dataclass(frozen=True, slots=True)
class WebFile:
    """One file. `packed` is gzip where that is shorter; `immutable`: its name has a version or a
    digest."""

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
        """Return the file of a path, or None. No path leads out of the folder or to a hidden
        file."""
        if not all(_PART.fullmatch(part) for part in name.split("/")):
            return None
        path = self._folder / name
        try:
            status = path.stat()
            mark = status.st_mtime_ns, status.st_size
            entry = self._read.get(name)
            if entry is None or entry[0] != mark:
                entry = self._read[name] = mark, _file(name, path.read_bytes())
        except OSError:  # also a folder
            return None
        return entry[1]

    def media(self) -> tuple[str, ...]:
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


def sent(file: WebFile, headers_in: Headers) -> Response:
    """Return the response with a file, or 304 where the browser has it."""
    packed = file.packed if _takes_gzip(headers_in) else None
    tag = f'"{file.tag}{"-gzip" if packed is not None else ""}"'
    headers = {
        **_SAFE,
        "ETag": tag,
        "Cache-Control": _KEPT if file.immutable else _ASKED,
        "Vary": "Accept-Encoding",
    }
    tags = headers_in.get("if-none-match", "").split(",")
    if tag in [one.strip().removeprefix("W/") for one in tags]:
        return Response(status_code=304, headers=headers)
    if packed is not None:
        headers["Content-Encoding"] = "gzip"
    return Response(packed or file.data, media_type=file.media, headers=headers)


def wants_page(headers: Headers) -> bool:
    """Return whether the first type that a client accepts is HTML."""
    first = headers.get("accept", "").partition(",")[0].partition(";")[0]
    return first.strip().lower() in _PAGE


def _takes_gzip(headers: Headers) -> bool:
    codings = headers.get("accept-encoding", "").lower().split(",")
    weights = [one.partition(";") for one in codings]
    return any(
        name.strip() == "gzip" and not re.fullmatch(r"\s*q=0(\.0*)?\s*", weight)
        for name, _, weight in weights
    )
