"""The files of the page, tagged, compressed, safe from foreign scripts. Reading them blocks."""

import gzip
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from starlette.datastructures import Headers
from starlette.responses import Response

FOLDER = Path(__file__).parents[2] / "web"
INDEX = "index.html"
_MEDIA_TYPES = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
    ".json": "application/json",
    ".png": "image/png",
    ".woff2": "font/woff2",
}
_OTHER_TYPE = "text/plain"
_COMPRESSED_TYPES = ("text/", "image/svg+xml", "application/json")
_PATH_PART = re.compile(r"[A-Za-z0-9_][\w.-]*", re.ASCII)
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
_SECURITY_HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_CACHE_FOREVER = "public, max-age=31536000, immutable"
_ASK_EACH_TIME = "no-cache"
_PAGE_TYPES = ("text/html", "application/xhtml+xml")


@dataclass(frozen=True, slots=True)
class WebFile:
    """One file of the page."""

    media: str
    data: bytes
    packed: bytes | None  # gzip, where that is shorter
    tag: str
    immutable: bool


class WebFiles:
    """The files below a `folder`. A file that has changed is read again."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._folder = folder
        self._files: dict[str, tuple[tuple[int, int], WebFile]] = {}

    def find(self, name: str) -> WebFile | None:
        """Return the file of a path, or None: also for hidden files and those outside."""
        if not all(_PATH_PART.fullmatch(part) for part in name.split("/")):
            return None
        path = self._folder / name
        try:
            status = path.stat()
            state = status.st_mtime_ns, status.st_size
            known_state, file = self._files.get(name, (None, None))
            if file is None or state != known_state:
                file = _make_file(name, path.read_bytes())
                self._files[name] = state, file
        except OSError:  # also a folder
            return None
        return file

    def media(self) -> tuple[str, ...]:
        """Return the media types of all files."""
        paths = (path for path in self._folder.rglob("*") if path.is_file())
        return tuple(sorted({_media_type_of(path.name) for path in paths}))


def _make_file(name: str, data: bytes) -> WebFile:
    media = _media_type_of(name)
    packed = gzip.compress(data, mtime=0) if media.startswith(_COMPRESSED_TYPES) else data
    shorter = packed if len(packed) < len(data) else None
    tag = hashlib.sha256(data).hexdigest()[:32]
    return WebFile(media, data, shorter, tag, immutable=bool(_VERSIONED.search(name)))


def _media_type_of(name: str) -> str:
    return _MEDIA_TYPES.get(Path(name).suffix, _OTHER_TYPE)


def file_response(file: WebFile, headers_in: Headers) -> Response:
    """Return the response with a file, or 304 where the browser has it."""
    packed = file.packed if _accepts_gzip(headers_in) else None
    tag = f'"{file.tag}{"-gzip" if packed is not None else ""}"'
    headers = {
        **_SECURITY_HEADERS,
        "ETag": tag,
        "Cache-Control": _CACHE_FOREVER if file.immutable else _ASK_EACH_TIME,
        "Vary": "Accept-Encoding",
    }
    known_tags = headers_in.get("if-none-match", "").split(",")
    if tag in [known.strip().removeprefix("W/") for known in known_tags]:
        return Response(status_code=304, headers=headers)
    if packed is not None:
        headers["Content-Encoding"] = "gzip"
    return Response(packed or file.data, media_type=file.media, headers=headers)


def wants_page(headers: Headers) -> bool:
    """Return whether the first type that a client accepts is HTML."""
    first_type = headers.get("accept", "").partition(",")[0].partition(";")[0]
    return first_type.strip().lower() in _PAGE_TYPES


def _accepts_gzip(headers: Headers) -> bool:
    for coding in headers.get("accept-encoding", "").lower().split(","):
        name, _, weight = coding.partition(";")
        if name.strip() == "gzip" and not re.fullmatch(r"\s*q=0(\.0*)?\s*", weight):
            return True
    return False
