"""Sends a file of the page, with the headers that keep a browser from running anything else."""

import re

from starlette.datastructures import Headers
from starlette.responses import Response

from omlx_server.api.web.files import WebFile

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


def sent(file: WebFile, asked: Headers) -> Response:
    """The response with a file: 304 without it where the browser has this content already. A
    browser keeps a file for good if it is immutable, else it asks each time."""
    packed = file.packed if _takes_gzip(asked) else None
    tag = f'"{file.tag}{"-gzip" if packed is not None else ""}"'
    headers = {
        **_SAFE,
        "ETag": tag,
        "Cache-Control": _KEPT if file.immutable else _ASKED,
        "Vary": "Accept-Encoding",
    }
    if tag in _tags(asked):
        return Response(status_code=304, headers=headers)
    if packed is not None:
        headers["Content-Encoding"] = "gzip"
    return Response(packed or file.data, media_type=file.media, headers=headers)


def wants_page(asked: Headers) -> bool:
    """Whether a client would rather have a page than JSON: the first type that it accepts is
    HTML, as of a browser. One that says nothing, or takes anything, does not."""
    first = asked.get("accept", "").partition(",")[0].partition(";")[0]
    return first.strip().lower() in _PAGE


def _takes_gzip(asked: Headers) -> bool:
    codings = asked.get("accept-encoding", "").lower().split(",")
    found = [one.partition(";") for one in codings]
    return any(
        name.strip() == "gzip" and not re.fullmatch(r"\s*q=0(\.0*)?\s*", weight)
        for name, _, weight in found
    )


def _tags(asked: Headers) -> list[str]:
    given = asked.get("if-none-match", "").split(",")
    return [tag.strip().removeprefix("W/") for tag in given]
