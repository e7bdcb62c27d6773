"""A link of the terminal signs a browser in once; tabs share that, and it may be remembered."""

import httpx
from playwright.sync_api import BrowserContext, Page, expect

from tests.api.harness import ADMIN_TOKEN
from tests.web.asking import OWNER
from tests.web.visits import Visits, shown

SECRET = "Token of this server's owner"


def new_code(url: str) -> str:
    answer = httpx.post(f"{url}/admin/sign-in-code", json={}, headers=OWNER, trust_env=False)
    return str(answer.json()["code"])


def follow(page: Page, url: str) -> str:
    """Open a new link, and return its code."""
    code = new_code(url)
    page.goto("about:blank")
    page.goto(f"{url}/#in={code}")
    expect(page).to_have_url(f"{url}/#talk")
    return code


def new_tab(context: BrowserContext, url: str) -> Page:
    page = context.new_page()
    page.goto(f"{url}/#models")
    return page


def close_all(context: BrowserContext) -> None:
    for page in context.pages:
        page.close()


def test_a_link_signs_in_once_and_leaves_no_trace(visits: Visits) -> None:
    with visits.open(token="") as page:
        code = follow(page, visits.url)
        page.get_by_role("navigation").get_by_role("link", name="Models").click()
        shown(page, "models")
        page.go_back()
        assert code not in page.evaluate("JSON.stringify([location.href, {...sessionStorage}])")
        page.reload()
        page.goto(f"{visits.url}/#models")
        shown(page, "models")
    with visits.open(token="") as page:
        page.goto(f"{visits.url}/#in={code}")
        expect(page.get_by_role("alert")).to_contain_text("was used before, or is too old")
        expect(page).to_have_url(f"{visits.url}/#talk")
        page.goto(f"{visits.url}/#in={new_code(visits.url)}")  # in the open page
        page.get_by_role("navigation").get_by_role("link", name="Models").click()
        shown(page, "models")
    visits.expected("403")


def test_tabs_share_it_until_the_last_is_closed(visits: Visits) -> None:
    with visits.open(token="") as page:
        waits = new_tab(page.context, visits.url)
        expect(waits.get_by_label(SECRET)).to_be_visible()
        follow(page, visits.url)
        shown(waits, "models")
        shown(new_tab(page.context, visits.url), "models")
        context = page.context
        close_all(context)
        expect(new_tab(context, visits.url).get_by_label(SECRET)).to_be_visible()


def test_a_browser_remembers_it_by_choice_until_one_signs_out(visits: Visits) -> None:
    with visits.open("models", token="") as page:
        context = page.context
        page.get_by_label(SECRET).fill(ADMIN_TOKEN)
        page.get_by_label("Stay signed in").check()
        page.get_by_role("button", name="Enter").click()
        shown(page, "models")
        expect(page.get_by_label("Stay signed in")).to_be_checked()
        page.get_by_label("Stay signed in").uncheck()
        assert page.evaluate("localStorage.length") == 0
        page.get_by_label("Stay signed in").check()
        close_all(context)
        page = new_tab(context, visits.url)
        shown(page, "models")
        other = new_tab(context, visits.url)
        expect(page.get_by_label("Stay signed in")).to_be_checked()
        shown(other, "models")
        page.get_by_role("button", name="Sign out").click()
        for tab in (page, other):
            expect(tab.get_by_label(SECRET)).to_be_visible()
            assert ADMIN_TOKEN not in tab.evaluate(
                "JSON.stringify([{...localStorage}, {...sessionStorage}])"
            )
