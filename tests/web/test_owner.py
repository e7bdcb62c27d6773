"""What only the owner does: models that come and go, and settings."""

import re

from playwright.sync_api import Route, expect

from tests.api.harness import ServerProcess
from tests.web.visits import Visits, overflows, shown


def test_a_model_is_loaded_pinned_and_unloaded(visits: Visits) -> None:
    with visits.open("models") as page:
        model = page.get_by_role("listitem").filter(has_text="org/other")
        model.get_by_role("button", name="Load org/other").click()
        expect(model.locator(".badge").first).to_have_text("loaded")
        model.get_by_role("button", name="Pin org/other").click()
        expect(model.get_by_text("pinned")).to_be_visible()
        model.get_by_role("button", name="Unpin org/other").click()
        model.get_by_role("button", name="Unload org/other").click()
        expect(model.locator(".badge").first).to_have_text("not loaded")


def test_a_model_that_loads_has_a_bar_and_those_that_are_here_tell_what_they_can(
    visits: Visits,
) -> None:
    load = {"bytes": 250_000, "total": 1_000_000}

    def tell(route: Route) -> None:
        told = route.fetch().json()
        for model in told["models"]:
            if model["name"] == "org/other":
                model |= {"state": "loading", "load": load}
        route.fulfill(json=told)

    with visits.open("models", width=390) as page:
        thinker = page.get_by_role("listitem").filter(has_text="org/thinker")
        expect(thinker.get_by_text("thinking", exact=True)).to_be_visible()
        expect(thinker.get_by_text("tools", exact=True)).to_have_count(0)
        expect(page.get_by_role("progressbar")).to_have_count(0)
        page.route("**/admin/models", tell)
        page.reload()
        bar = page.get_by_role("progressbar", name="Weights of org/other in memory")
        expect(bar).to_have_attribute("value", "250000")
        expect(page.get_by_text("250 kB of 1.00 MB in memory")).to_be_visible()
        assert not overflows(page)
        page.unroute_all(behavior="wait")


def test_a_live_setting_is_changed_and_a_bad_value_refused(
    visits: Visits, server: ServerProcess
) -> None:
    with visits.open("settings") as page:
        shown(page, "settings")
        page.get_by_label("Search").fill("sse_ping")
        field = page.get_by_label("sse_ping_seconds")
        expect(field).to_have_value("5 s")
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
        expect(page.get_by_label("sse_ping_seconds")).to_have_value("7 s")
        page.get_by_label("Search").fill("allowed_hosts")
        expect(page.get_by_label("allowed_hosts")).to_be_disabled()


def test_a_setting_is_found_by_a_word_explained_and_reset(
    visits: Visits, server: ServerProcess
) -> None:
    with visits.open("settings") as page:
        search = page.get_by_label("Search")
        search.fill("Quantize")
        expect(page.get_by_label("scheme")).to_have_accessible_description(
            re.compile("^Keep keys and values in few bits, .* – none: as the model computes ")
        )
        search.fill("disk size")
        field = page.get_by_label("cold_cache_max_bytes")
        expect(field).to_have_value("20 GB")
        expect(field).to_have_accessible_description(re.compile("^The size of all files"))
        expect(page.get_by_label("port", exact=True)).to_have_count(0)
        setting = page.locator(".setting").filter(has=page.get_by_text("cold_cache_max_bytes"))
        field.fill("4 GB")
        field.press("Enter")
        expect(setting.locator(".good")).to_have_text("In force.")
        assert 'cold_cache_max_bytes = "4 GB"' in server.config.read_text()
        setting.get_by_role("button", name="Reset to 20 GB").click()
        expect(field).to_have_value("20 GB")
        expect(setting.get_by_role("button")).to_have_count(0)
        assert "cold_cache_max_bytes" not in server.config.read_text()


def test_the_first_change_makes_the_config_file(visits: Visits, server: ServerProcess) -> None:
    def tell(route: Route) -> None:
        told = route.fetch().json()
        if route.request.method == "GET":
            told |= {"file": None}
        route.fulfill(json=told)

    with visits.open("settings") as page:
        page.route("**/admin/settings", tell)
        page.reload()
        expect(page.get_by_text("the first change makes it")).to_be_visible()
        page.get_by_label("Search").fill("sse_ping")
        field = page.get_by_label("sse_ping_seconds")
        field.fill("8")
        page.unroute("**/admin/settings")
        field.press("Enter")
        expect(page.get_by_text(f"Changes are written to {server.config}")).to_be_visible()
        assert "sse_ping_seconds = 8" in server.config.read_text()


def test_a_service_is_restarted_after_a_question(visits: Visits, server: ServerProcess) -> None:
    asked: list[str] = []

    def as_a_service(route: Route) -> None:
        """What the server says, as a service would; once restarted, nothing waits."""
        told = route.fetch().json()
        policy = next(one for one in told["settings"] if one["key"] == "scheduler.policy")
        policy["needs_restart"] = not asked
        route.fulfill(json={**told, "can_restart": True})

    def restart(route: Route) -> None:
        asked.append(route.request.method)
        route.fulfill(json={"applied": [], "needs_restart": ["scheduler.policy"]})

    with visits.open() as page:
        page.route("**/admin/settings", as_a_service)
        page.route("**/admin/settings/restart", restart)
        page.goto(f"{visits.url}/#settings")
        card = page.locator(".restart")
        expect(card).to_contain_text("Needs a restart: scheduler.policy")
        page.once("dialog", lambda dialog: dialog.dismiss())
        card.get_by_role("button", name="Restart").click()
        assert not asked
        page.once("dialog", lambda dialog: dialog.accept())
        page.clock.install()
        card.get_by_role("button", name="Restart").click()
        expect(card).to_contain_text("starts again")
        page.clock.run_for(2100)
        expect(card).to_have_count(0)
        assert asked == ["POST"]


def test_without_a_service_manager_a_restart_is_only_advised(visits: Visits) -> None:
    with visits.open("settings") as page:
        policy = page.get_by_label("policy")
        policy.select_option("fcfs")
        card = page.locator(".restart")
        expect(card).to_have_text("Needs a restart: scheduler.policy")
        expect(card.get_by_role("button")).to_have_count(0)
        policy.select_option("fair")
        expect(card).to_have_count(0)


def test_a_name_says_what_it_would_be(visits: Visits) -> None:
    with visits.open("models") as page:
        name = page.get_by_label("Model", exact=True)
        told = page.locator(".resolved")
        name.fill("startr")
        expect(told).to_contain_text("No model of this name is known.")
        told.get_by_role("button", name="starter", exact=True).click()
        expect(name).to_have_value("starter")
        expect(told).to_contain_text("In the catalogue")
        name.fill("org/other")
        expect(told).to_contain_text("It is here, in ")


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
