"""Nothing that was written or answered is lost, and the keyboard goes where one expects it."""

import re
from pathlib import Path
from typing import Any

import orjson
from playwright.sync_api import Locator, Page, expect

from tests.api.harness import CHAT, Json
from tests.web.visits import Visits, answer_with, answered, say, set_options

TURNS = 200


def button(place: Page | Locator, name: str) -> Locator:
    return place.get_by_role("button", name=name, exact=True)


def texts(page: Page) -> list[str]:
    """What the messages of the open conversation say."""
    return page.locator(".said, .markdown").all_inner_texts()


def ask(page: Page, text: str, answer: str) -> None:
    answer_with(page, {"content": answer})
    say(page, text)
    answered(page)


def import_turns(page: Page, count: int) -> None:
    pairs = ((("user", f"Question {n}"), ("assistant", f"Answer {n}")) for n in range(count))
    messages = [{"role": role, "content": text} for pair in pairs for role, text in pair]
    conversation = {"title": "Long", "messages": messages}
    file = {"format": "omlx_server conversations 1", "conversations": [conversation]}
    page.get_by_label("File of conversations").set_input_files(
        {"name": "c.json", "mimeType": "application/json", "buffer": orjson.dumps(file)}
    )
    page.get_by_role("link", name="Long").click()
    expect(page.locator(".message")).to_have_count(2 * count)


def test_another_answer_leaves_the_first_one_with_all_that_followed(visits: Visits) -> None:
    with visits.open() as page:
        ask(page, "A colour?", "Red.")
        ask(page, "Why?", "Warm.")
        first, versions = page.locator(".answer").first, page.locator(".answer .versions")
        answer_with(page, {"content": "Blue."})
        button(first, "Regenerate").click()
        answered(page)
        assert texts(page) == ["A colour?", "Blue."]
        expect(versions).to_have_text("2 / 2")
        button(first, "Earlier version").click()
        expect(button(first, "Earlier version")).to_be_focused()
        assert texts(page) == ["A colour?", "Red.", "Why?", "Warm."]
        page.reload()
        expect(versions).to_have_text("1 / 2")
        assert texts(page) == ["A colour?", "Red.", "Why?", "Warm."]
        button(first, "Later version").click()
        expect(versions).to_have_text("2 / 2")
        with page.expect_request(f"**{CHAT}") as sent:
            ask(page, "Why blue?", "Cold.")
        said = [message["content"] for message in body_of(sent.value.post_data_json)]
        assert said == ["A colour?", "Blue.", "Why blue?"]
        button(first, "Earlier version").click()
        button(first, "Later version").click()
        assert texts(page) == ["A colour?", "Blue.", "Why blue?", "Cold."]


def body_of(body: Any) -> list[Json]:
    messages: list[Json] = body["messages"]
    return messages


def test_an_edit_within_two_hundred_turns_keeps_them_all(visits: Visits, tmp_path: Path) -> None:
    with visits.open() as page:
        import_turns(page, TURNS)
        before = texts(page)
        middle = page.locator(".user").nth(TURNS // 2)
        button(middle, "Edit").click()
        expect(page.get_by_label("Edit your message")).to_be_focused()
        page.keyboard.type(", asked otherwise")
        answer_with(page, {"content": "Anew."})
        page.keyboard.press("Control+Enter")
        answered(page)
        expect(page.locator(".message")).to_have_count(TURNS + 2)
        expect(middle.locator(".said")).to_have_text(f"Question {TURNS // 2}, asked otherwise")
        with page.expect_download() as download:
            button(page, "Export").click()
        file = tmp_path / "conversations.json"
        download.value.save_as(file)
        page.get_by_label("File of conversations").set_input_files(file)
        page.locator(".conversations a:not([aria-current])").click()
        expect(page.locator(".conversations li").nth(1)).to_be_visible()
        button(middle, "Earlier version").click()
        expect(page.locator(".message")).to_have_count(2 * TURNS)
        assert texts(page) == before


def test_a_failure_is_no_version(visits: Visits) -> None:
    with visits.open() as page:
        page.route(f"**{CHAT}", lambda route: route.fulfill(status=503, json={}))
        say(page, "Anybody?")
        answered(page)
        answer_with(page, {"content": "Me."})
        button(page, "Try again").click()
        answered(page)
        assert texts(page) == ["Anybody?", "Me."]
        expect(page.locator(".versions")).to_have_count(0)
    visits.expected("503")


def test_drafts_outlive_another_view_and_a_reload(visits: Visits) -> None:
    with visits.open() as page:
        field, editor = page.get_by_label("Message", exact=True), page.get_by_label("Edit your")
        ask(page, "Kept?", "Yes.")
        field.fill("Half a thought")
        button(page, "Edit").click()
        editor.fill("Asked otherwise")
        kept = page.url
        page.get_by_role("link", name="New conversation").click()
        expect(field).to_have_value("")
        field.fill("A new thought")
        button(page, "Options").click()
        page.get_by_label("System prompt").fill("Be brief")
        page.get_by_role("navigation").get_by_role("link", name="Log").click()
        page.get_by_role("navigation").get_by_role("link", name="Talk").click()
        expect(field).to_have_value("A new thought")
        button(page, "Options").click()
        expect(page.get_by_label("System prompt")).to_have_value("Be brief")
        page.goto(kept)
        for _ in range(2):
            expect(field).to_have_value("Half a thought")
            expect(editor).to_have_value("Asked otherwise")
            page.reload()
        button(page, "Cancel").click()
        button(page, "Send").click()
        answered(page)
        page.reload()
        expect(field).to_have_value("")
        expect(editor).to_have_count(0)


def test_what_was_deleted_comes_back(visits: Visits) -> None:
    with visits.open() as page:
        listed = page.locator(".conversations a")
        set_options(page, {"ignore_eos": True}, max_tokens=3000)
        answer = say(page, "Count for ever")
        expect(answer.locator(".markdown")).not_to_be_empty()
        page.get_by_label("Message", exact=True).fill("A draft")
        page.locator(".conversations li").hover()
        button(page, "Delete Count for ever").click()
        expect(button(page, "Undo")).to_be_focused()
        expect(page.locator(".message")).to_have_count(0)
        ask(page, "Another", "Yes.")
        expect(listed).to_have_text("Another")
        button(page, "Undo").click()
        expect(listed).to_have_text(["Another", "Count for ever"])
        expect(page.locator(".user .said")).to_have_text("Count for ever")
        expect(answered(page).locator(".markdown")).not_to_be_empty()
        expect(page.get_by_label("Message", exact=True)).to_have_value("A draft")


def test_the_focus_goes_into_the_editor_and_stays(visits: Visits) -> None:
    with visits.open() as page:
        field, editor = page.get_by_label("Message", exact=True), page.get_by_label("Edit your")
        expect(field).to_be_focused()
        ask(page, "First words", "Yes.")
        button(page, "Edit").click()
        expect(editor).to_be_focused()
        page.keyboard.type(" and more")
        expect(editor).to_have_value("First words and more")
        model = page.get_by_label("Model", exact=True)
        model.focus()
        model.select_option("org/other")
        expect(model).to_be_focused()
        editor.focus()
        page.keyboard.press("Escape")
        expect(editor).to_have_count(0)
        expect(button(page, "Edit")).to_be_focused()
        page.keyboard.press("Enter")
        expect(editor).to_have_value("First words and more")
        button(page, "Cancel").click()
        button(page, "Edit").click()
        expect(editor).to_have_value("First words")
        editor.fill("Second words")
        button(page, "Send again").click()
        answered(page)
        expect(field).to_be_focused()


def test_escape_stops_an_answer_and_closes_a_question(visits: Visits) -> None:
    with visits.open() as page:
        set_options(page, {"ignore_eos": True}, max_tokens=3500)
        answer = say(page, "Count for ever")
        expect(answer.locator(".markdown")).not_to_be_empty()
        page.keyboard.press("Escape")
        expect(answered(page).locator(".figures")).to_have_text("stopped")
        page.route("**/v1/models", lambda route: route.fulfill(status=401, json={}))
        page.reload()
        expect(page.get_by_role("dialog")).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.get_by_role("dialog")).to_have_count(0)
        page.unroute("**/v1/models")
        page.goto(f"{visits.url}/#log")
        row = page.get_by_role("row").filter(has_text="stopped").first
        expect(row).not_to_have_class(re.compile("failed"))
    visits.expected("401")
