"""The page in a real browser, from an empty home directory on: `scripts/campaign page`.

A server of a tiny model begins in a home directory that has nothing. Then one goes through the page
as a new owner does: the starter model is pulled and loaded, there is a conversation, the server is
killed and started again, and at last servers without admin routes and without the page are started.
The starter model comes over the network.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from playwright.sync_api import Browser, Error, Page, expect, sync_playwright

from tests.api.harness import ServerProcess, serving
from tests.campaigns import models
from tests.web.asking import OWNER
from tests.web.chromium import MISSING, chromium
from tests.web.visits import Visits, answered, say, set_options, shown

_STARTER = "starter"
_PULL_SECONDS = 600.0
_LOAD_SECONDS = 120.0
_PAUSE = 0.02
_LONGEST_PROBLEM = 300
_ENDLESS = {"ignore_eos": True}
_OF_THE_CACHES = ("HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME")
# Where the bar of a pull was, as its stage and a percentage.
_WATCH_BAR = """() => {
    window.places = new Set();
    const look = () => {
        const bar = document.querySelector("progress");
        if (!bar || bar.position < 0) return;
        const stage = bar.parentElement.textContent.trim().split(":")[0];
        window.places.add(`${stage} ${Math.round(100 * bar.position)} %`);
    };
    const how = { subtree: true, childList: true, attributes: true, characterData: true };
    new MutationObserver(look).observe(document.body, how);
}"""

Say = Callable[[str], None]


@dataclass(slots=True)
class Outcome:
    """How many steps there were, and what is not as it should be."""

    steps: int = 0
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.steps} steps, {len(self.problems)} problems"


def campaign(directory: Path, *, say: Say) -> Outcome:
    """Run it; each step is told in a line. Raises AssertionError where there is no browser."""
    path = chromium()
    assert path is not None, MISSING
    model, _ = models.find("tiny", directory / "models")
    tiny = str(directory / "models" / model)
    with sync_playwright() as playwright, _empty_home(directory / "home"):
        browser = playwright.chromium.launch(
            executable_path=path, args=["--disable-dev-shm-usage", "--disable-gpu"]
        )
        visit = _Visit(browser, tiny, directory, say)
        try:
            visit.run()
        finally:
            visit.server.kill()
            browser.close()
    return visit.outcome


class _Visit:
    """One way through the page. `server` is the one of now."""

    def __init__(self, browser: Browser, model: str, directory: Path, say: Say) -> None:
        self.outcome = Outcome()
        self._browser = browser
        self._model = model
        self._directory = directory
        self._say = say
        self.server = ServerProcess(model, directory / "server")
        self.server.wait_ready()
        self._visits = Visits(browser, self.server.url)

    def run(self) -> None:
        with self._visits.open() as page:
            steps = {
                "the page opens": self._opens,
                "the starter model is pulled": self._pull,
                "it is loaded": self._load,
                "an answer streams": self._stream,
                "a second turn finds the first": self._second_turn,
                "an answer is stopped": self._stop,
                "an answer is given again": self._regenerate,
                "a message is edited": self._edit,
                "the server is killed and starts again": self._kill,
                "the conversation goes on": self._go_on,
                "nothing else went wrong in the browser": self._clean,
            }
            for name, step in steps.items():
                self._step(name, partial(step, page))
        self.server.stop()
        self._step("without admin routes", self._without_admin)
        self._step("without the page", self._without_page)

    def _step(self, name: str, step: Callable[[], str]) -> None:
        self.outcome.steps += 1
        began = time.monotonic()
        try:
            told = step()
        except (AssertionError, Error) as error:
            told = f"PROBLEM: {str(error)[:_LONGEST_PROBLEM]}"
            self.outcome.problems.append(f"{name}: {told}")
        self._say(f"{name}: {told} ({time.monotonic() - began:.1f} s)")

    # -- models --------------------------------------------------------------------------

    def _opens(self, page: Page) -> str:
        shown(page, "talk")
        return page.title()

    def _pull(self, page: Page) -> str:
        page.goto(f"{self.server.url}/#models")
        shown(page, "models")
        page.evaluate(_WATCH_BAR)
        page.get_by_label("Model", exact=True).fill(_STARTER)
        told = page.locator(".resolved")
        expect(told).to_contain_text("it is not on this machine yet")
        page.get_by_role("button", name="Pull").click()
        expect(told).to_contain_text("It is here, in ", timeout=1000 * _PULL_SECONDS)
        expect(told.locator(".problem")).to_have_count(0)
        places = page.evaluate("[...window.places]")
        assert len(places) > 2, f"the bar hardly moved: {places}"
        return f"the bar was in {len(places)} places, from {places[0]} to {places[-1]}"

    def _load(self, page: Page) -> str:
        row = page.locator(".model").filter(has_text=_STARTER)
        row.get_by_role("button", name="Load").click()
        badge = row.locator(".badge").first
        expect(badge).to_have_text("loaded", timeout=1000 * _LOAD_SECONDS)
        return row.get_by_role("heading").inner_text()

    # -- talk ----------------------------------------------------------------------------

    def _stream(self, page: Page) -> str:
        page.goto(f"{self.server.url}/#talk")
        shown(page, "talk")
        page.get_by_label("Model", exact=True).select_option(_STARTER)
        set_options(page, _ENDLESS, max_tokens=60)
        answer = say(page, "What is the capital of France?")
        lengths = set[int]()
        while answer.get_attribute("aria-busy") == "true":
            lengths.add(len("".join(answer.locator(".markdown").all_inner_texts())))
            time.sleep(_PAUSE)
        assert len(lengths - {0}) > 2, f"lengths were {lengths}"
        text = answered(page).locator(".markdown").inner_text()
        assert "Paris" in text, text
        return f"seen at {len(lengths)} lengths; {_figures(page)}"

    def _second_turn(self, page: Page) -> str:
        say(page, "And of Italy?")
        assert _cached(page) > 0, _figures(page)
        return _figures(page)

    def _stop(self, page: Page) -> str:
        set_options(page, _ENDLESS, max_tokens=3000)
        answer = say(page, "Count for ever.")
        expect(answer.locator(".markdown")).not_to_be_empty()
        page.get_by_role("button", name="Stop").click()
        figures = answered(page).locator(".figures")
        expect(figures).to_have_text("stopped")
        self.server.wait_idle()
        set_options(page, _ENDLESS, max_tokens=40)
        return "stopped, and the server is idle"

    def _regenerate(self, page: Page) -> str:
        say(page, "Name a colour.")
        first = answered(page).locator(".markdown").inner_text()
        page.locator(".answer").last.get_by_role("button", name="Regenerate").click()
        expect(page.locator(".answer").last).to_have_attribute("aria-busy", "true")
        again = answered(page).locator(".markdown").inner_text()
        assert again == first, f"{first!r}, then {again!r}"
        return f"the same text; {_figures(page)}"

    def _edit(self, page: Page) -> str:
        second = page.locator(".message.user").nth(1)
        second.get_by_role("button", name="Edit").click()
        page.get_by_label("Edit your message").fill("And of Spain?")
        page.get_by_role("button", name="Send again").click()
        expect(page.locator(".message.user")).to_have_count(2)
        expect(page.locator(".message.user .said").last).to_have_text("And of Spain?")
        assert _cached(page) > 0, _figures(page)
        return _figures(page)

    # -- other servers -------------------------------------------------------------------

    def _kill(self, page: Page) -> str:
        before = _texts(page)
        self.server.kill()
        port = int(self.server.url.rpartition(":")[2])
        self.server = ServerProcess(self._model, self._directory / "server", port=port)
        self.server.wait_ready()
        page.reload()
        expect(page.locator(".answer")).to_have_count(len(before))
        assert _texts(page) == before, f"{before}, then {_texts(page)}"
        return f"{len(before)} answers are still there"

    def _go_on(self, page: Page) -> str:
        set_options(page, _ENDLESS, max_tokens=40)
        count = page.locator(".answer").count()
        say(page, "And of Portugal?")
        expect(answered(page).get_by_role("alert")).to_have_count(0)
        expect(page.locator(".answer")).to_have_count(count + 1)
        first = _figures(page)
        say(page, "And of Greece?")
        assert _cached(page) > 0, _figures(page)
        return f"{first}; then {_figures(page)}"

    def _clean(self, _: Page) -> str:
        problems = self._visits.problems
        assert not problems, str(problems)
        return "no error in the console, no request to another host"

    def _without_admin(self) -> str:
        with self._serving("admin.enabled=false") as server:
            visits = Visits(self._browser, server.url)
            with visits.open("log") as page:
                expect(page.get_by_role("heading", name="Not on this server")).to_be_visible()
                expect(page.get_by_text("Talk only: admin.enabled is off.")).to_be_visible()
                links = page.get_by_role("navigation").get_by_role("link")
                expect(links).to_have_count(1)
                links.click()
                say(page, "Hello")
                expect(answered(page).locator(".figures")).to_contain_text("out")
            status = server.http.get(f"{server.url}/admin/models", headers=OWNER).status_code
            assert status == 404, status
            assert not visits.problems, visits.problems
            return "it says so and talks; /admin/models is 404"

    def _without_page(self) -> str:
        with self._serving("web.enabled=false") as server:
            root = server.http.get(f"{server.url}/", headers={"accept": "text/html"})
            assert root.headers["content-type"] == "application/json", root.headers
            assert root.status_code == 200, root.text
            status = server.http.get(f"{server.url}/web/main.js").status_code
            assert status == 404, status
            return f"/ is {root.text[:80]}, /web/main.js is 404"

    @contextmanager
    def _serving(self, setting: str) -> Iterator[ServerProcess]:
        """A server of the model that was pulled."""
        with serving(_STARTER, self._directory / setting, setting) as server:
            yield server


@contextmanager
def _empty_home(home: Path) -> Iterator[None]:
    """Servers that start meanwhile find nothing of the user's."""
    before = dict(os.environ)
    home.mkdir()
    for name in _OF_THE_CACHES:
        os.environ.pop(name, None)
    os.environ["HOME"] = str(home)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _figures(page: Page) -> str:
    return " ".join(answered(page).locator(".figures").inner_text().split())


def _cached(page: Page) -> int:
    words = answered(page).locator(".figures .cached").inner_text()
    return int(words.split()[0].replace(",", ""))


def _texts(page: Page) -> list[str]:
    return page.locator(".answer .markdown").all_inner_texts()
