"""The list of conversations: search, titles, days, and files of other programs; kept presets."""

import re
import time
from typing import Any

import orjson
from playwright.sync_api import Page, expect

from tests.api.harness import CHAT, Json
from tests.web.visits import Visits, answer_with, answered, say

DAY_MS = 86_400_000


def import_file(page: Page, content: object) -> None:
    file = {"name": "c.json", "mimeType": "application/json", "buffer": orjson.dumps(content)}
    page.get_by_label("File of conversations").set_input_files(file)  # type: ignore[arg-type]


def ours(*conversations: Json) -> Json:
    return {"format": "omlx_server conversations 1", "conversations": list(conversations)}


def about(title: str, text: str, days_ago: float = 0) -> Json:
    changed = time.time() * 1000 - days_ago * DAY_MS
    return {"title": title, "changed": changed, "messages": [{"role": "user", "content": text}]}


def texts(page: Page) -> list[str]:
    return page.locator(".said, .markdown").all_inner_texts()


def test_conversations_are_in_groups_by_day(visits: Visits) -> None:
    with visits.open() as page:
        now = page.evaluate("Date.now() - new Date().setHours(12, 0, 0, 0)")
        ages = {"a": 0, "b": 1, "c": 5, "d": 40, "e": 41, "f": 400}
        noons = [about(title, "x", days + now / DAY_MS) for title, days in ages.items()]
        import_file(page, ours(*noons, {"title": "g", "changed": 1e300}))
        expect(page.get_by_text("7 conversations imported.")).to_be_visible()
        groups = page.locator(".conversations h2")
        assert groups.all_inner_texts()[:3] == ["Today", "Yesterday", "Previous 7 days"]
        month = page.evaluate(
            "new Intl.DateTimeFormat('en', { month: 'long', year: 'numeric' })"
            ".format(new Date().setHours(12, 0, 0, 0) - 400 * 864e5)"
        )
        assert groups.last.inner_text() == month
        yesterday = page.locator(".conversations section").nth(1)
        assert yesterday.locator("a").all_inner_texts() == ["b"]


def test_a_search_looks_into_titles_texts_and_versions(visits: Visits) -> None:
    with visits.open() as page:
        versions = [[{"role": "user", "content": "An OTTER swims"}]]
        hidden = {"role": "user", "content": "A heron", "earlier": versions}
        file = ours(about("Cats", "They purr"), about("Birds", "y") | {"messages": [hidden]})
        import_file(page, file)
        listed = page.locator(".conversations a")
        expect(listed).to_have_count(2)
        search = page.get_by_label("Search conversations")
        for words, title in (("cat", "Cats"), ("purr they", "Cats"), ("otter", "Birds")):
            search.fill(words)
            expect(listed).to_have_text([title])
        search.fill("purr otter")
        expect(page.get_by_text("No conversation has these words.")).to_be_visible()
        search.fill("")
        expect(listed).to_have_count(2)
        search.press_sequentially("purr ")
        expect(listed).to_have_count(1)
        search.press_sequentially("they")  # the space before it has stayed
        expect(search).to_have_value("purr they")


def test_a_title_is_changed_and_keeps_its_place(visits: Visits) -> None:
    with visits.open() as page:
        import_file(page, ours(about("New", "x"), about("Old", "y", 3)))
        listed = page.locator(".conversations a")
        expect(listed).to_have_text(["New", "Old"])
        listed.last.click()
        listed.last.hover()
        page.get_by_role("button", name="Rename Old").click()
        title = page.get_by_label("Title", exact=True)
        expect(title).to_be_focused()
        title.fill("Dropped")
        title.press("Escape")
        expect(page.get_by_role("button", name="Rename Old")).to_be_focused()
        page.keyboard.press("Enter")
        title.fill("Better")
        title.press("Enter")
        expect(listed).to_have_text(["New", "Better"])
        answer_with(page, {"content": "Yes."})
        say(page, "More")
        answered(page)
        expect(listed).to_have_text(["Better", "New"])
        page.reload()
        expect(listed).to_have_text(["Better", "New"])


def chat_gpt(node: str, parent: str | None, children: list[str], *said: Any) -> dict[str, Json]:
    message: Any = None
    if said:
        role, parts, *more = said
        content = {"content_type": "text", "parts": parts}
        message = {"author": {"role": role}, "content": content, "metadata": dict(*more)}
    return {node: {"id": node, "parent": parent, "children": children, "message": message}}


def test_chat_gpts_export_comes_in_with_its_branches(visits: Visits) -> None:
    hidden = {"is_visually_hidden_from_conversation": True}
    mapping = {
        **chat_gpt("root", None, ["sys"]),
        **chat_gpt("sys", "root", ["q"], "system", ["Be kind"], hidden),
        **chat_gpt("q", "sys", ["a1", "tool"], "user", ["A colour?"]),
        **chat_gpt("a1", "q", ["q2"], "assistant", ["Red."], {"model_slug": "gpt-4o"}),
        **chat_gpt("q2", "a1", [], "user", ["Why red?"]),
        **chat_gpt("tool", "q", ["a2"], "tool", ["found"]),
        **chat_gpt("a2", "tool", ["q3", "q"], "assistant", ["Blue."]),
        **chat_gpt("q3", "a2", [], "user", [{"content_type": "image_asset_pointer"}, "Why?"]),
    }
    file = {"title": "Colours", "create_time": 1.7e9, "mapping": mapping, "current_node": "q3"}
    with visits.open() as page:
        import_file(page, [file])
        page.get_by_role("link", name="Colours").click()
        expect(page.locator(".message")).to_have_count(3)
        assert texts(page) == ["A colour?", "Blue.", "[image_asset_pointer]\n\nWhy?"]
        page.get_by_role("button", name="Earlier version").click()
        expect(page.locator(".versions")).to_have_text("1 / 2")
        assert texts(page) == ["A colour?", "Red.", "Why red?"]
        expect(page.locator(".conversations h2")).to_have_text("November 2023")


def test_open_web_uis_export_comes_in(visits: Visits) -> None:
    thought = (
        '<details type="reasoning" done="true" duration="2">\n<summary>Thought for 2 seconds'
        "</summary>\n&gt; Is it 1 &lt; 2?\n&gt; Yes.\n</details>\nIt is."
    )
    question = {"role": "user", "content": "Less?", "parentId": None, "childrenIds": ["b", "c"]}
    answer = {"role": "assistant", "parentId": "a", "childrenIds": []}
    messages = {
        "a": question,
        "b": answer | {"content": thought, "model": "qwen3"},
        "c": answer | {"content": "No."},
    }
    chat = {"history": {"messages": messages, "currentId": "b"}, "params": {"system": "Be brief"}}
    with visits.open() as page:
        import_file(page, [{"title": "Sums", "updated_at": 1.7e9, "chat": chat}])
        page.get_by_role("link", name="Sums").click()
        page.get_by_text("Thoughts").click()
        assert texts(page) == ["Less?", "Is it 1 < 2?\nYes.", "It is."]
        expect(page.locator(".versions")).to_have_text("1 / 2")
        page.get_by_role("button", name="Options").click()
        expect(page.get_by_label("System prompt")).to_have_value("Be brief")
        opening = '<details type="reasoning"><summary>x</summary>'
        endless = {"messages": [{"role": "assistant", "content": opening * 10_000}]}
        import_file(page, [{"title": "Endless", "chat": endless}])
        expect(page.get_by_role("link", name="Endless")).to_be_visible()
        import_file(page, [{"title": "Neither"}])
        expect(page.get_by_role("alert")).to_contain_text("no conversations of this page, ChatGPT")


def test_presets_are_kept_and_empty_fields_show_what_is_in_force(visits: Visits) -> None:
    with visits.open() as page:
        page.get_by_role("button", name="Options").click()
        warmth, system = page.get_by_label("Temperature"), page.get_by_label("System prompt")
        expect(warmth).to_have_attribute("placeholder", "default: 1")
        expect(page.get_by_label("Seed")).to_have_attribute("placeholder", "default")
        longest = page.get_by_label("Longest answer")
        expect(longest).to_have_attribute("placeholder", re.compile(r"^[\d,]+ tokens$"))
        system.fill("Speak like a pirate")
        warmth.fill("0.5")
        page.get_by_label("Name of the preset").fill("Pirate")
        page.get_by_role("button", name="Save preset").click()
        system.fill("")
        warmth.fill("")
        page.reload()
        page.get_by_role("button", name="Options").click()
        expect(system).to_have_value("")
        preset = page.get_by_label("Preset", exact=True)
        chosen = preset.locator("option:checked")
        for kept in ("No preset", "Pirate"):
            preset.select_option("Pirate")
            expect(system).to_have_value("Speak like a pirate")
            page.get_by_label("Top p").fill("0.9")
            page.get_by_label("Top p").blur()
            expect(chosen).to_have_text("Own values")
            preset.select_option(kept)
            expect(chosen).to_have_text(kept)
            expect(page.get_by_label("Top p")).to_have_value("")
        page.reload()
        page.get_by_role("button", name="Options").click()
        expect(chosen).to_have_text("Pirate")
        expect(system).to_have_value("Speak like a pirate")
        answer_with(page, {"content": "Arr."})
        with page.expect_request(f"**{CHAT}") as sent:
            say(page, "Hello")
        body: Any = sent.value.post_data_json
        assert body["temperature"] == 0.5
        assert body["messages"][0] == {"role": "system", "content": "Speak like a pirate"}
        page.get_by_role("button", name="Delete preset").click()
        expect(page.get_by_label("Preset", exact=True)).to_have_count(0)
