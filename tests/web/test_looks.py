"""Every view at two widths, light and dark: nothing overflows, axe-core finds nothing, and a
picture is made. OMLX_SCREENSHOTS names a folder where the pictures stay."""

import json
import os
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.sync_api import Page, expect

from tests.api.harness import ServerProcess
from tests.sweeps import wide
from tests.web.asking import SYSTEM, ask
from tests.web.visits import (
    VIEWS,
    Visits,
    answer_with,
    answered,
    overflows,
    say,
    shown,
)

SIZES: tuple[tuple[int, Literal["dark", "light"]], ...] = (
    (360, "light"),
    (360, "dark"),
    (1400, "light"),
    (1400, "dark"),
)
# Each width once and each scheme once: axe-core takes longer than all the rest.
LOOKED_AT: tuple[tuple[int, Literal["dark", "light"]], ...] = ((360, "dark"), (1400, "light"))
ANSWER = """A prefix cache keeps what a model has computed of a prompt. The next prompt that begins
the **same way** starts where the cache ends:

1. Blocks of `64` tokens are looked up from the start.
2. What is found is restored, and the rest is computed.

```python
found = cache.match(prompt)
compute(prompt[found.tokens :])
```

| part | tokens | time |
|---|---|---|
| restored | 3,840 | 12 ms |
| computed | 61 | 210 ms |

### What is counted
- [x] The hit rate $h = \\frac{f}{n}$
- [ ] The mean: $$\\bar{t} = \\sum_{i=1}^{n} \\begin{pmatrix} t_i \\\\ 1 \\end{pmatrix}$$

```ts
// What a block costs.
@frozen
class Block extends Base<number> { size = 64 * 2; name: string = `b ${true}`; }
```

```diff
- old
+ new
```
"""
# How many files of the page were loaded, and how many bytes came for them.
LOADED = """() => {
    const files = performance.getEntriesByType("resource").filter(({ name }) => /web/.test(name));
    return [files.length, files.reduce((sum, { transferSize }) => sum + transferSize, 0)];
}"""
# Placeholders that are wider than their fields.
CUT = """() => {
    const cut = (field) => {
        const copy = field.cloneNode();
        copy.type = "text";
        copy.value = field.placeholder;
        field.replaceWith(copy);
        const wide = copy.scrollWidth > copy.clientWidth;
        copy.replaceWith(field);
        return wide;
    };
    const fields = [...document.querySelectorAll("input[placeholder]")];
    return fields.filter(cut).map((one) => one.placeholder);
}"""
AXE = """async () => {
    const shown = (node) => node.html.slice(0, 150);
    const { violations } = await axe.run(document, { resultTypes: ["violations"] });
    return violations.map(({ id, nodes }) => [id, ...nodes.slice(0, 3).map(shown)].join(" | "));
}"""


@pytest.fixture(scope="package")
def axe() -> str:
    return (resources.files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")


@pytest.fixture(scope="package")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    given = os.environ.get("OMLX_SCREENSHOTS")
    folder = Path(given) if given else tmp_path_factory.mktemp("screenshots")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def violations(page: Page, axe: str) -> list[Any]:
    page.evaluate(axe)
    return list(page.evaluate(AXE))


@pytest.fixture(scope="package")
def asked(server: ServerProcess) -> None:
    """There is something in the cache and in the log."""
    for animal in ("fox", "dog", "cat", "fox"):
        ask(server, f"Where is the {animal} today, and what does it do all day long?")


@pytest.mark.parametrize(("width", "scheme"), [*LOOKED_AT, *wide(sorted({*SIZES} - {*LOOKED_AT}))])
@pytest.mark.usefixtures("asked")
def test_each_view_fits_and_is_accessible(
    visits: Visits, axe: str, pictures: Path, width: int, scheme: Literal["dark", "light"]
) -> None:
    looks = (width, scheme) in LOOKED_AT

    def look(page: Page) -> list[Any]:
        return violations(page, axe) if looks else []

    with visits.open(width=width, scheme=scheme, touch=width < 500) as page:
        shown(page, "talk")
        answer_with(
            page,
            {"reasoning_content": "The question is about a cache."},
            *({"content": ANSWER[at : at + 40]} for at in range(0, len(ANSWER), 40)),
        )
        say(page, "What does a prefix cache do?")
        answered(page)
        page.get_by_role("button", name="Options").click()
        assert not page.evaluate(CUT)
        found = {"talk with options": look(page)}
        page.get_by_role("button", name="Options").click()
        for view in VIEWS:
            if view != "talk":
                page.goto(f"{visits.url}/#{view}")
                shown(page, view)
            settle(page, view)
            found[view] = look(page)
            assert not overflows(page), view
            assert not page.evaluate(CUT), view
            page.screenshot(path=pictures / f"{view}-{width}-{scheme}.png")
        assert not any(found.values()), json.dumps(found, indent=1)


def test_what_asks_for_a_token_is_accessible(visits: Visits, axe: str, pictures: Path) -> None:
    with visits.open("models", token="") as page:
        expect(page.get_by_label("Token of this server's owner")).to_be_focused()
        assert not violations(page, axe)
        page.screenshot(path=pictures / "token.png")


@pytest.mark.parametrize(("width", "scheme"), LOOKED_AT)
def test_a_server_that_is_away_is_told_until_it_answers(
    visits: Visits, axe: str, pictures: Path, width: int, scheme: Literal["dark", "light"]
) -> None:
    with visits.open("log", width=width, scheme=scheme) as page:
        page.route("**/web/about.json", lambda route: route.abort())
        page.reload()
        told = page.get_by_role("heading", name="The server can't be reached", level=1)
        expect(told).to_be_visible()
        expect(page.get_by_role("alert")).to_contain_text("tries again every two seconds")
        assert not violations(page, axe)
        assert not overflows(page)
        page.screenshot(path=pictures / f"away-{width}-{scheme}.png")
        page.unroute("**/web/about.json")
        shown(page, "log")
        expect(told).to_have_count(0)
    visits.expected("net::ERR_FAILED")


def settle(page: Page, view: str) -> None:
    """Wait for what the server tells."""
    if view == "models":
        expect(page.get_by_role("heading", name="org/other")).to_be_visible()
    if view == "cache":
        page.set_viewport_size({"width": page.evaluate("innerWidth"), "height": 1900})
        expect(page.locator(".ledger")).to_be_visible()
        page.get_by_role("combobox", name="Model").select_option("org/tiny")
        expect(page.locator(".map .block").first).to_be_visible()
        page.get_by_label("System prompt").fill(SYSTEM)
        page.get_by_label("Message").fill("Where is the bird today?")
        page.get_by_role("button", name="Compare").click()
        expect(page.get_by_role("region", name="Comparison")).to_be_visible()
    if view == "settings":
        expect(page.get_by_role("heading", name="server", exact=True)).to_be_visible()


def test_a_phone_does_not_zoom_into_a_field(visits: Visits) -> None:
    """Safari does so where the letters of a field are smaller than 16 pixels."""
    with visits.open("settings", width=390, touch=True) as page:
        settle(page, "settings")
        sizes = "(fields) => fields.map((field) => parseFloat(getComputedStyle(field).fontSize))"
        fields = page.locator("input, select, textarea")
        assert min(fields.evaluate_all(sizes)) >= 16


def test_the_theme_is_kept_and_the_keyboard_reaches_all_of_it(visits: Visits) -> None:
    with visits.open("models") as page:
        shown(page, "models")
        page.keyboard.press("Tab")
        expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
        for name in ("Talk", "Models", "Memory and cache", "Log", "Settings"):
            page.keyboard.press("Tab")
            expect(page.get_by_role("link", name=name)).to_be_focused()
        page.get_by_role("button", name="Colours").click()
        page.get_by_role("button", name="Colours: light").click()
        page.reload()
        expect(page.locator("html")).to_have_attribute("data-theme", "dark")


def test_the_first_view_takes_few_small_files_and_the_next_one_none(visits: Visits) -> None:
    with visits.open() as page:
        shown(page, "talk")
        page.wait_for_load_state("networkidle")
        files, size = page.evaluate(LOADED)
        assert 10 < files < 60
        assert size < 150_000
        page.reload()
        shown(page, "talk")
        page.wait_for_load_state("networkidle")
        again, size = page.evaluate(LOADED)
        assert again == files
        assert size < 25_000, "a browser that has them is told so, with headers alone"
