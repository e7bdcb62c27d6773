"""What only the owner does: models that come and go, and settings."""

from playwright.sync_api import expect

from tests.api.harness import ServerProcess
from tests.web.visits import Visits, shown


def test_a_model_is_loaded_pinned_and_unloaded(visits: Visits) -> None:
    with visits.open("models") as page:
        model = page.get_by_role("listitem").filter(has_text="org/other")
        model.get_by_role("button", name="Load org/other").click()
        expect(model.locator(".badge").first).to_have_text("loaded")
        model.get_by_role("button", name="Pin org/other").click()
        expect(model.get_by_text("pinned")).to_be_visible()
        model.get_by_role("button", name="Unpin org/other").click()
        model.get_by_role("button", name="Unload org/other").click()
        expect(model.locator(".badge").first).to_have_text("absent")


def test_a_live_setting_is_changed_and_a_bad_value_refused(
    visits: Visits, server: ServerProcess
) -> None:
    with visits.open("settings") as page:
        shown(page, "settings")
        page.get_by_label("Search").fill("sse_ping")
        field = page.get_by_label("sse_ping_seconds")
        expect(field).to_have_value("5")
        field.fill("0")
        field.press("Enter")
        setting = page.locator(".setting").filter(has_text="sse_ping_seconds")
        expect(setting.locator(".problem")).to_be_visible()
        visits.expected("400")
        field.fill("7")
        field.press("Enter")
        expect(setting.locator(".good")).to_have_text("In force.")
        assert "sse_ping_seconds = 7" in server.config.read_text()
        page.reload()
        page.get_by_label("Search").fill("sse_ping")
        expect(page.get_by_label("sse_ping_seconds")).to_have_value("7")
        page.get_by_label("Search").fill("allowed_hosts")
        expect(page.get_by_label("allowed_hosts")).to_be_disabled()


def test_a_name_says_what_it_would_be_and_what_is_here_is_pulled_at_once(visits: Visits) -> None:
    with visits.open("models") as page:
        name = page.get_by_label("Model", exact=True)
        told = page.locator(".resolved")
        name.fill("startr")
        expect(told).to_contain_text("No model of this name is known. Near it: starter.")
        name.fill("starter")
        expect(told).to_contain_text("In the catalogue")
        name.fill("org/other")
        expect(told).to_contain_text("It is here, in ")
        page.get_by_role("button", name="Pull").click()
        expect(page.get_by_role("button", name="Pull")).to_be_enabled()
        expect(told.locator(".problem")).to_have_text([])


def test_the_live_state_is_asked_for_by_views_that_show_it_and_by_no_other(
    visits: Visits,
) -> None:
    with visits.open("talk") as page:
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        shown(page, "talk")
        page.reload()
        shown(page, "talk")
        assert not [url for url in asked if "/admin/" in url]
        with page.expect_request("**/admin/live"):
            page.goto(f"{visits.url}/#log")
        with page.expect_event("requestfailed", lambda request: "/admin/live" in request.url):
            page.goto(f"{visits.url}/#talk")
        shown(page, "talk")


def test_where_the_server_has_no_admin_routes_the_page_only_talks(visits: Visits) -> None:
    about = {"version": "1", "needs_key": False, "admin": False, "needs_token": False}
    with visits.open("log") as page:
        page.route("**/web/about.json", lambda route: route.fulfill(json=about))
        page.reload()
        expect(page.get_by_role("heading", name="Not on this server")).to_be_visible()
        links = page.get_by_role("navigation").get_by_role("link")
        expect(links).to_have_count(1)
        expect(page.get_by_text("Talk only: admin.enabled is off.")).to_be_visible()
