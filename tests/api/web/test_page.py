"""The page and its files, with the headers under which a browser gets them."""

import asyncio
import gzip
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from omlx_server.api.app import create_app
from omlx_server.api.http.static_files import POLICY, WebFiles
from omlx_server.settings import Settings
from omlx_server.settings.sections import AdminSettings, AuthSettings, WebSettings
from omlx_server.wiring.context import make_context
from tests.api.fixed import fixed_models

BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
PAGE = "<!doctype html><title>omlx_server</title>" + "<p>words</p>" * 100
FILES = {
    "index.html": PAGE,
    "main.js": "export {};\n",
    "style/base.css": "body { margin: 0 }\n",
    "vendor/marked-18.2.1.js": "export const marked = 1;\n" * 20,
    "vendor/marked-LICENSE": "MIT\n",
    "data.0a1b2c3d4e.js": "export {};\n",
    ".secret": "nobody's business",
}
KEYED = Settings(auth=AuthSettings.of({"api_keys": ("key-of-a-client",)}))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / "web" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "outside.js").write_text("not for anybody")
    return tmp_path / "web"


def get(folder: Path, path: str, settings: Settings = KEYED, **headers: str) -> httpx.Response:
    context = make_context(fixed_models(), settings)
    app = create_app(replace(context, web=WebFiles(folder) if context.web else None))

    async def asking() -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            names = {name.replace("_", "-"): value for name, value in headers.items()}
            return await http.get(path, headers=names)

    return asyncio.run(asking())


def test_a_browser_gets_the_page_without_a_key(folder: Path) -> None:
    answer = get(folder, "/", accept=BROWSER)
    assert answer.status_code == 200 and answer.text == PAGE
    assert answer.headers["content-type"].startswith("text/html")
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["vary"] == "Accept, Accept-Encoding"


@pytest.mark.parametrize("accept", ["*/*", "application/json", "application/json, text/html", ""])
def test_all_others_get_json(folder: Path, accept: str) -> None:
    answer = get(folder, "/", accept=accept)
    assert answer.json()["api"] == "/v1"


@pytest.mark.parametrize(
    ("path", "media"),
    [
        ("/web/index.html", "text/html"),
        ("/web/main.js", "text/javascript"),
        ("/web/style/base.css", "text/css"),
        ("/web/vendor/marked-LICENSE", "text/plain"),
    ],
)
def test_files_need_no_key_and_have_their_types(folder: Path, path: str, media: str) -> None:
    answer = get(folder, path)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith(media)


@pytest.mark.parametrize("path", ["/", "/web/main.js"])
def test_a_browser_runs_nothing_else(folder: Path, path: str) -> None:
    headers = get(folder, path, accept=BROWSER).headers
    assert headers["content-security-policy"] == POLICY
    assert "unsafe" not in POLICY and "script-src 'self'" in POLICY
    for name in ("base-uri", "form-action", "frame-ancestors", "default-src"):
        assert f"{name} 'none'" in POLICY
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert "set-cookie" not in headers


def test_what_a_name_fixes_is_kept_for_good_and_all_else_is_asked_for(folder: Path) -> None:
    for name in ("vendor/marked-18.2.1.js", "data.0a1b2c3d4e.js"):
        assert "immutable" in get(folder, f"/web/{name}").headers["cache-control"]
    for name in ("main.js", "index.html", "vendor/marked-LICENSE"):
        assert get(folder, f"/web/{name}").headers["cache-control"] == "no-cache"


def test_what_has_not_changed_is_not_sent_again(folder: Path) -> None:
    first = get(folder, "/web/main.js")
    tag = first.headers["etag"]
    again = get(folder, "/web/main.js", if_none_match=f'"other", W/{tag}')
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    assert again.headers["content-security-policy"] == POLICY
    (folder / "main.js").write_text("export const changed = 1;\n")
    changed = get(folder, "/web/main.js", if_none_match=tag)
    assert changed.status_code == 200 and changed.headers["etag"] != tag


def test_a_file_that_has_changed_is_read_again(folder: Path) -> None:
    files = WebFiles(folder)
    first = files.find("main.js")
    assert first is not None and files.find("main.js") is first
    (folder / "main.js").write_text("export const changed = 1;\n")
    again = files.find("main.js")
    assert again is not None and again.tag != first.tag


def test_files_are_compressed_for_who_takes_it(folder: Path) -> None:
    packed = get(folder, "/web/index.html", accept_encoding="br, gzip;q=0.5")
    plain = get(folder, "/web/index.html", accept_encoding="gzip;q=0, br")
    assert packed.headers["content-encoding"] == "gzip"
    assert int(packed.headers["content-length"]) == len(gzip.compress(PAGE.encode(), mtime=0))
    assert packed.text == plain.text == PAGE
    assert "content-encoding" not in plain.headers
    assert packed.headers["etag"] != plain.headers["etag"]
    assert packed.headers["vary"] == "Accept-Encoding"


@pytest.mark.parametrize(
    "path",
    [
        "/web/",
        "/web/nothing.js",
        "/web/style",
        "/web/style/",
        "/web/.secret",
        "/web/../outside.js",
        "/web/%2e%2e/outside.js",
        "/web/style/..%2f..%2foutside.js",
        "/web//main.js",
        "/web/main.js%00",
        "/web/" + "a" * 5000,
    ],
)
def test_no_path_leads_out_of_the_folder(folder: Path, path: str) -> None:
    answer = get(folder, path)
    assert answer.status_code in (404, 401), answer.text
    assert "not for anybody" not in answer.text and "business" not in answer.text


def test_what_the_page_asks_first_holds_no_data(folder: Path) -> None:
    told = get(folder, "/web/about.json").json()
    assert told.pop("version")
    assert told == {"needs_key": True, "admin": True, "needs_token": True, "models": False}
    closed = Settings(admin=AdminSettings(enabled=False))
    told = get(folder, "/web/about.json", closed).json()
    assert (told["needs_key"], told["admin"], told["needs_token"]) == (False, False, False)
    by_key = Settings(auth=AuthSettings.of({"admin": "key"}))
    assert get(folder, "/web/about.json", by_key).json()["needs_token"] is False


def test_switched_off_there_is_no_page(folder: Path) -> None:
    off = Settings(web=WebSettings(enabled=False))
    assert get(folder, "/", off, accept=BROWSER).json()["api"] == "/v1"
    for path in ("/web/main.js", "/web/about.json"):
        assert get(folder, path, off).status_code == 404


def test_a_page_that_is_not_installed_is_json(tmp_path: Path) -> None:
    assert get(tmp_path, "/", accept=BROWSER).json()["api"] == "/v1"


def test_a_foreign_host_gets_no_page(folder: Path) -> None:
    assert get(folder, "/", accept=BROWSER, host="evil.example").status_code == 403
    assert get(folder, "/web/main.js", host="evil.example").status_code == 403
