"""The address of a server's page, with a code that signs the browser in once."""

import html
import webbrowser
from contextlib import suppress
from http import HTTPStatus

from omlx_server.cli.server_client.http import NoAnswer, ServerClient, socket_of, with_admin_token
from omlx_server.errors import ConfigError
from omlx_server.settings.admin_token import token_file
from omlx_server.settings.whole_file import PRIVATE_DIRECTORY, PRIVATE_FILE, replacing

_FILE_NAME = "page.html"
_FILE = """<!doctype html>
<meta charset="utf-8">
<meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0; url={url}">
<title>omlx_server</title>
<p><a href="{url}">The page of omlx-server</a></p>
"""


def page_url(server: ServerClient) -> str:
    """Return the URL of a server's page; "" if a browser can't open it. Raises NoAnswer."""
    if socket_of(server.url):
        return ""
    reply = server.get("/web/index.html")
    is_html = reply.status == HTTPStatus.OK and reply.body.lstrip()[:1] == b"<"
    return f"{server.url}/" if is_html else ""


def signed_in_url(server: ServerClient, page: str) -> str:
    """Return `page` with a new code, or as it is if this user's server gives none."""
    if not server.is_own:
        return page
    with suppress(ConfigError, NoAnswer):
        reply = with_admin_token(server).post("/admin/sign-in-code", {})
        if reply.status == HTTPStatus.OK and (code := reply.text("code")):
            return f"{page}#in={code}"
    return page


def open_page(server: ServerClient, page: str) -> None:
    """Open the page, signed in. A file has the code: other users see arguments of programs."""
    url = page
    with suppress(OSError, ConfigError):
        path = token_file().with_name(_FILE_NAME)
        path.parent.mkdir(mode=PRIVATE_DIRECTORY, parents=True, exist_ok=True)
        signed_in = signed_in_url(server, page)
        if signed_in != page:
            with replacing(path, PRIVATE_FILE) as file:
                file.write(_FILE.format(url=html.escape(signed_in)).encode())
            url = path.as_uri()
    webbrowser.open(url)
