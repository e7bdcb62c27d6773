"""Conversations: streamed, stopped, edited, kept, and what comes between."""

import re
from base64 import b64decode, b64encode
from pathlib import Path

from playwright.sync_api import Browser, expect

from tests.api.harness import ADMIN_TOKEN, CHAT, ServerProcess
from tests.web.visits import (
    Visits,
    answer_with,
    answered,
    overflows,
    say,
    set_options,
    shown,
)

ENDLESS = {"ignore_eos": True}
DOT = b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
# The browser's own measure of what moved without anybody's doing; 0.1 counts as good.
WATCH_SHIFTS = """() => {
    window.shifts = 0;
    const add = (list) => list.getEntries().forEach((one) => (window.shifts += one.value));
    new PerformanceObserver(add).observe({ type: "layout-shift" });
}"""
FIGURES = re.compile(r"\d+ in.*\d+ cached.*\d+ out.*first token after", re.DOTALL)


def test_an_answer_streams_and_tells_its_figures(visits: Visits) -> None:
    with visits.open() as page:
        shown(page, "talk")
        set_options(page, ENDLESS, max_tokens=300)
        say(page, "Hello there, fox")
        expect(answered(page).locator(".figures")).to_have_text(FIGURES)
        expect(answered(page).locator(".figures")).to_contain_text("tok/s")
        first = answered(page).locator(".markdown").inner_text()
        say(page, "And again")
        cached = answered(page).locator(".figures .cached")
        assert int(cached.inner_text().split()[0]) > 0
        page.locator(".answer").last.get_by_role("button", name="Regenerate").click()
        expect(page.locator(".answer")).to_have_count(2)
        answered(page)
        assert page.locator(".answer .markdown").first.inner_text() == first


def test_a_stream_is_stopped_and_the_next_message_goes_on(visits: Visits) -> None:
    with visits.open() as page:
        set_options(page, ENDLESS, max_tokens=3500)
        say(page, "Count for ever")
        expect(page.locator(".answer .markdown")).not_to_be_empty()
        page.get_by_role("button", name="Stop").click()
        expect(answered(page).locator(".figures")).to_have_text("stopped")
        set_options(page, ENDLESS)
        say(page, "Go on")
        expect(answered(page).locator(".figures")).to_have_text(FIGURES)


def test_a_message_is_edited_and_sent_again(visits: Visits) -> None:
    with visits.open() as page:
        set_options(page, ENDLESS)
        say(page, "First words")
        answered(page)
        say(page, "Second words")
        answered(page)
        first = page.locator(".message.user").first
        first.get_by_role("button", name="Edit").click()
        page.get_by_label("Edit your message").fill("Other words")
        page.get_by_role("button", name="Send again").click()
        expect(page.locator(".message.user")).to_have_count(1)
        expect(page.locator(".message.user .said")).to_have_text("Other words")
        answered(page)


def test_a_conversation_outlives_a_reload_and_reaches_another_tab(visits: Visits) -> None:
    with visits.open() as page:
        set_options(page, ENDLESS)
        say(page, "Keep this")
        text = answered(page).locator(".markdown").inner_text()
        page.reload()
        expect(page.locator(".answer .markdown")).to_have_text(text, use_inner_text=True)
        other = page.context.new_page()
        other.goto(page.url)
        expect(other.locator(".answer")).to_have_count(1)
        say(page, "From the first tab")
        answered(page)
        expect(other.locator(".answer")).to_have_count(2)
        other.get_by_role("link", name="New conversation").click()
        expect(other.locator(".answer")).to_have_count(0)
        set_options(other, ENDLESS)
        say(other, "From the second tab")
        answered(other)
        listed = page.locator(".conversations a")
        expect(listed).to_have_count(2)
        expect(listed.first).to_have_text("From the second tab")


def test_the_model_is_switched_within_a_conversation(visits: Visits) -> None:
    with visits.open() as page:
        choice = page.get_by_label("Model", exact=True)
        set_options(page, {**ENDLESS, "max_tokens": 60})
        choice.select_option("org/tiny")
        say(page, "One")
        answered(page)
        choice.select_option("org/thinker")
        say(page, "Two")
        thought = answered(page).locator(".thoughts")
        expect(thought).not_to_have_attribute("open", re.compile(".*"))
        thought.locator("summary").click()
        expect(thought.locator(".said")).not_to_be_empty()


def test_conversations_go_out_as_a_file_and_come_back(visits: Visits, tmp_path: Path) -> None:
    with visits.open() as page:
        answer_with(page, {"content": "Kept **well**."})
        say(page, "To be exported")
        answered(page)
        with page.expect_download() as download:
            page.get_by_role("button", name="Export", exact=True).click()
        file = tmp_path / "conversations.json"
        download.value.save_as(file)
        page.locator(".conversations li").hover()
        page.get_by_role("button", name="Delete To be exported").click()
        expect(page.locator(".conversations a")).to_have_count(0)
        page.get_by_label("File of conversations").set_input_files(file)
        page.locator(".conversations a").click()
        expect(page.locator(".answer strong")).to_have_text("well")


def test_an_image_goes_along_where_the_model_takes_images(visits: Visits) -> None:
    told = {"id": "org/tiny", "architecture": {"input_modalities": ["text", "image"]}}
    with visits.open("log") as page:
        page.route("**/v1/models", lambda route: route.fulfill(json={"data": [told]}))
        page.goto(f"{visits.url}/#talk")
        answer_with(page, {"content": "A dot."})
        page.get_by_label("Image files").set_input_files(
            {"name": "dot.png", "mimeType": "image/png", "buffer": DOT}
        )
        expect(page.get_by_alt_text("Attached image 1")).to_be_visible()
        page.reload()
        expect(page.get_by_alt_text("Attached image 1")).to_be_visible()
        with page.expect_request(f"**{CHAT}") as sent:
            say(page, "What is this?")
        body = sent.value.post_data_json
        assert body is not None
        image, text = body["messages"][0]["content"]
        assert image["image_url"]["url"] == f"data:image/png;base64,{b64encode(DOT).decode()}"
        assert text == {"type": "text", "text": "What is this?"}
        answered(page)
        page.reload()
        expect(page.get_by_alt_text("Image 1")).to_be_visible()
        expect(page.get_by_alt_text("Attached image 1")).to_have_count(0)


def test_calls_json_and_code_are_shown_as_such(visits: Visits) -> None:
    call = {"index": 0, "id": "c1", "function": {"name": "weather", "arguments": '{"city":'}}
    rest = {"index": 0, "function": {"arguments": '"Rome"}'}}
    with visits.open() as page:
        answer_with(page, {"tool_calls": [call]}, {"tool_calls": [rest]}, finish="tool_calls")
        say(page, "Weather?")
        expect(answered(page).locator(".call code").last).to_have_text('{\n  "city": "Rome"\n}')
        answer_with(page, {"content": '{"degrees": 21}'})
        page.get_by_label("Result of weather").fill("21 degrees")
        page.get_by_role("button", name="Send results").click()
        expect(page.locator(".answer")).to_have_count(2)
        expect(answered(page).locator("pre code")).to_have_text('{\n  "degrees": 21\n}')
        answer_with(page, {"content": "```python\nprint(1)\n```\n\n| a | b |\n|-|-|\n| 1 | 2 |"})
        say(page, "Code")
        answer = answered(page)
        expect(answer.locator("figcaption span")).to_have_text("python")
        expect(answer.locator("td")).to_have_count(2)


def test_nothing_jumps_while_an_answer_streams_and_its_end_stays_in_view(visits: Visits) -> None:
    with visits.open(width=360) as page:
        set_options(page, ENDLESS, max_tokens=700)
        page.evaluate(WATCH_SHIFTS)
        answer = say(page, "Write much")
        expect(answer.locator(".markdown")).not_to_be_empty()
        answered(page)
        expect(answer.locator("footer")).to_be_in_viewport()
        assert page.locator(".messages").evaluate("(box) => box.scrollTop") > 0
        assert page.evaluate("window.shifts") < 0.05
        assert not overflows(page)


def test_a_wrong_key_is_said_and_the_right_one_lets_in(visits: Visits) -> None:
    with visits.open(token="") as page:
        field = page.get_by_label("Key of this server")
        field.fill("wrong")
        page.get_by_role("button", name="Enter", exact=True).click()
        expect(page.get_by_text("The server does not take this key.")).to_be_visible()
        field.fill("key-of-the-page")
        page.get_by_role("button", name="Enter", exact=True).click()
        expect(page.get_by_label("Model", exact=True)).to_be_visible()
        page.goto(f"{visits.url}/#models")
        page.get_by_label("Token of this server's owner").fill(ADMIN_TOKEN)
        page.get_by_role("button", name="Enter", exact=True).click()
        expect(page.get_by_role("heading", name="org/other")).to_be_visible()
        assert page.evaluate("document.cookie + JSON.stringify(localStorage)").count("key-of") == 0
    visits.expected("401")


def test_a_key_that_is_no_longer_valid_is_asked_for_below_the_answer(visits: Visits) -> None:
    error = {"message": "Incorrect API key provided.", "code": "invalid_api_key"}
    with visits.open() as page:
        page.route(f"**{CHAT}", lambda route: route.fulfill(status=401, json={"error": error}))
        say(page, "Hello")
        dialog = page.get_by_role("dialog")
        dialog.get_by_role("button", name="Not now").click()
        told = answered(page).get_by_role("alert")
        expect(told.get_by_text("The server wants one of its keys for this.")).to_be_visible()
        page.reload()
        told.get_by_role("button", name="Enter it").click()
        expect(dialog.get_by_label("Key of this server")).to_be_focused()
        answer_with(page, {"content": "Here."})
        dialog.get_by_label("Key of this server").fill("key-of-the-page")
        dialog.get_by_role("button", name="Enter").click()
        told.get_by_role("button", name="Try again").click()
        expect(answered(page).locator(".markdown")).to_have_text("Here.")
        expect(page.get_by_role("alert")).to_have_count(0)
        page.route("**/v1/models", lambda route: route.fulfill(status=401, json={"error": error}))
        page.reload()
        dialog.get_by_role("button", name="Not now").click()
        banner = page.get_by_role("alert").filter(has_text="wants one of its keys")
        banner.get_by_role("button", name="Enter it").click()
        expect(dialog).to_be_visible()
    visits.expected("401")


def test_a_conversation_goes_on_after_a_restart_of_the_server(
    browser: Browser, sets: list[str], tmp_path: Path
) -> None:
    server = ServerProcess("org/tiny", tmp_path / "one", sets)
    try:
        server.wait_ready()
        visits = Visits(browser, server.url)
        with visits.open() as page:
            set_options(page, ENDLESS)
            say(page, "Before")
            answered(page)
            log = page.context.new_page()
            log.goto(f"{visits.url}/#log")
            expect(log.get_by_role("row").nth(1)).to_be_visible()
            server.stop()
            say(page, "While it is away")
            expect(answered(page).get_by_role("alert")).to_contain_text("can't be reached")
            expect(log.get_by_role("alert")).to_contain_text("can't be reached")
            port = int(server.url.rpartition(":")[2])
            server = ServerProcess("org/tiny", tmp_path / "two", sets, port=port)
            server.wait_ready()
            page.get_by_role("button", name="Try again").click()
            expect(answered(page).locator(".figures")).to_have_text(FIGURES)
            expect(log.get_by_role("alert")).to_have_count(0)
            expect(log.get_by_role("row")).to_have_count(2)
        visits.expected("net::ERR_")
        server.stop()
    finally:
        server.kill()
