"""Pages of the browser that note what no page of ours may do: errors in the console, requests to
other hosts."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import orjson
from playwright.sync_api import (
    Browser,
    ConsoleMessage,
    Locator,
    Page,
    Request,
    Route,
    expect,
)

from tests.api.harness import ADMIN_TOKEN, CHAT, PATIENCE, Json

VIEWS = ("talk", "models", "cache", "log", "settings")
HEADINGS = {
    "talk": "Talk",
    "models": "Models",
    "cache": "Memory and cache",
    "log": "Log",
    "settings": "Settings",
}
_HEADERS = {"content-type": "text/event-stream"}

# about:blank, where a page begins, has no storage.
_ENTERED = """if (location.protocol.startsWith("http")) {
    sessionStorage.setItem("omlx.token", sessionStorage.getItem("omlx.token") ?? "%s");
}"""

expect.set_options(timeout=PATIENCE * 1000)


class Visits:
    """Opens pages of one server. `problems` are what its pages did wrong until now."""

    def __init__(self, browser: Browser, url: str) -> None:
        self._browser = browser
        self.url = url
        self.problems: list[str] = []

    @contextmanager
    def open(
        self,
        place: str = "talk",
        *,
        width: int = 1400,
        scheme: Literal["dark", "light"] = "light",
        token: str = ADMIN_TOKEN,
        touch: bool = False,
    ) -> Iterator[Page]:
        """A view of a browser that nobody has used before."""
        height = 740 if width < 500 else 900
        context = self._browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme=scheme,
            reduced_motion="reduce",
            locale="en-GB",
            has_touch=touch,
        )
        if token:
            context.add_init_script(_ENTERED % token)
        context.on("page", self._watch)
        page = context.new_page()
        page.goto(f"{self.url}/#{place}")
        yield page
        context.close()

    def expected(self, words: str) -> None:
        """Forget the problems with these words, of which there must be some, and no others."""
        assert self.problems and all(words in problem for problem in self.problems), self.problems
        self.problems.clear()

    def _watch(self, page: Page) -> None:
        page.set_default_timeout(PATIENCE * 1000)
        page.on("pageerror", lambda error: self.problems.append(f"error: {error}"))
        page.on("console", self._listen)
        page.on("request", self._look)

    def _listen(self, said: ConsoleMessage) -> None:
        if said.type in ("error", "warning"):
            self.problems.append(said.text)

    def _look(self, request: Request) -> None:
        url = request.url
        if not url.startswith((self.url, "data:", "blob:")):
            self.problems.append(f"a request to {url}")


def shown(page: Page, view: str) -> None:
    """Wait until a view is there."""
    expect(page.get_by_role("heading", name=HEADINGS[view], level=1)).to_be_visible()


def say(page: Page, text: str) -> Locator:
    """Send a message, and return the newest answer, which may still grow."""
    page.get_by_label("Message", exact=True).fill(text)
    page.get_by_role("button", name="Send").click()
    return page.locator(".answer").last


def answered(page: Page) -> Locator:
    """Wait until the newest answer is complete."""
    last = page.locator(".answer").last
    expect(last).to_have_attribute("aria-busy", "false")
    return last


def set_options(page: Page, fields: Json, max_tokens: int = 24) -> None:
    """Greedy answers of this length, with more fields of the request."""
    button = page.get_by_role("button", name="Options")
    button.click()
    page.get_by_label("Temperature").fill("0")
    page.get_by_label("Longest answer").fill(str(max_tokens))
    page.get_by_label("More fields of the request").fill(orjson.dumps(fields).decode())
    button.click()


def overflows(page: Page) -> bool:
    """Whether the page is wider than its window."""
    return bool(page.evaluate("document.documentElement.scrollWidth > innerWidth"))


def answer_with(page: Page, *deltas: Json, finish: str = "stop") -> None:
    """From now on chats of this page are answered with these deltas, which no tiny model gives."""

    def fulfil(route: Route) -> None:
        route.fulfill(status=200, headers=_HEADERS, body=stream_of(deltas, finish))

    page.route(f"**{CHAT}", fulfil)


def stream_of(deltas: tuple[Json, ...], finish: str) -> bytes:
    usage = {"prompt_tokens": 9, "completion_tokens": 5, "total_tokens": 14}
    chunks: list[Json] = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    chunks.append({"choices": [], "usage": usage})
    events = [b"data: " + orjson.dumps(chunk) + b"\n\n" for chunk in chunks]
    return b"".join([*events, b"data: [DONE]\n\n"])
