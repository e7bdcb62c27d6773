"""Hostile answers and names are text: they run nothing, load nothing, and hide nothing."""

import orjson
from playwright.sync_api import Page, Route, expect

from tests.web.visits import Visits, answer_with, answered, overflows, say

ATTACKS = (
    "<script>window.hacked = 1</script>",
    '<img src=x onerror="window.hacked = 1">',
    '<svg onload="window.hacked = 1"><script>window.hacked = 1</script></svg>',
    '<iframe src="javascript:window.parent.hacked = 1"></iframe>',
    '<a href="javascript:window.hacked = 1">click</a>',
    "[click](javascript:window.hacked=1)",
    "[click](JaVaScRiPt&colon;window.hacked=1)",
    "[click](data:text/html,<script>window.hacked=1</script>)",
    "![image](https://elsewhere.example/pixel.png)",
    '![x](x"onerror="window.hacked=1)',
    "<style>* { display: none }</style>",
    '<form action="https://elsewhere.example"><input name=q></form>',
    '<base href="https://elsewhere.example/">',
    '<meta http-equiv="refresh" content="0;url=https://elsewhere.example">',
    "<math><mtext><table><mglyph><style><img src=x onerror=window.hacked=1>",
    "```html\n<script>window.hacked = 1</script>\n```",
    '<https://elsewhere.example/" onmouseover="window.hacked=1>',
    "\u202egnp.exe\u202c and \u2066hidden\u2069",
    "> " * 3000 + "deep",
    r"$\href{javascript:window.hacked=1}{x}$ and $$\includegraphics{https://elsewhere.example/x.png}$$",
    r"\(\htmlData{onclick=window.hacked=1}{x}\) \[\data{onclick=window.hacked=1}{x}\]",
    r"$\style{position:fixed;inset:0}{x}$ $\class{scrim}{x}$ $\id{app}{x}$ $\pmb{x}$",
    r"$\text{<img src=x onerror=window.hacked=1>}$ <$x$ onclick=window.hacked=1>",
    r"$\def\a{\a\a}\a$ $\rule{9999em}{9999em}$ $\kern{-9999em}x$",
    "```html\n<img src=x onerror='window.hacked = 1'>\n```\n\n"
    "- in a list:\n  ```js\n  '</code><svg>'\n  ```\n\n```constructor\nx\n```",
    "[" * 20_000,
)
_ELEMENTS = "script, img, svg, iframe, style, form, base, meta, input, object, embed"


def harmless(page: Page) -> bool:
    """Whether nothing ran, and no answer is anything but text, lists, links, code and formulas."""
    made = page.locator(".answer .markdown").locator(_ELEMENTS).count()
    events = "[...document.querySelectorAll('.answer *')].some((one) => "
    events += "one.getAttributeNames().some((name) => name.startsWith('on') || name === 'id'"
    events += " || name === 'style' && !one.closest('math')))"
    return not made and not page.evaluate(events) and not page.evaluate("'hacked' in window")


def test_hostile_answers_show_as_text(visits: Visits) -> None:
    with visits.open() as page:
        for attack in ATTACKS:
            answer_with(page, {"content": attack})
            say(page, "Attack")
            answer = answered(page)
            expect(answer.locator(".markdown")).not_to_be_empty()
            assert harmless(page), attack[:80]
            links = answer.locator(".markdown a")
            for link in links.all():
                assert str(link.get_attribute("href")).startswith(("https://", "mailto:"))
        expect(page.get_by_text("<script>window.hacked = 1</script>").first).to_be_visible()
        for command in (r"\href", r"\htmlData", r"\data", r"\style", r"\class", r"\id"):
            expect(page.locator(".answer").filter(has_text=command)).to_have_count(1)
        assert not overflows(page)


def test_long_answers_do_not_hold_the_page_up(visits: Visits) -> None:
    with visits.open() as page:
        answer_with(page, *({"content": "tokens and more\n\n" * 4096} for _ in range(150)))
        say(page, "10 MB")
        answer = answered(page)
        expect(answer.get_by_role("button", name="more characters")).to_be_visible()
        answer_with(page, {"content": "x" * 90_000})
        say(page, "One line")
        answered(page)
        assert not overflows(page)
        page.get_by_label("Message", exact=True).fill("It still takes what is typed")


def test_a_hostile_file_of_conversations_shows_as_text(visits: Visits) -> None:
    odd: list[object] = [None, 7, {"role": "user"}, {"role": "script", "content": "x"}]
    hostile = {
        "role": "assistant",
        "content": ATTACKS[1],
        "thoughts": {"a": 1},
        "usage": {"a": "b"},
    }
    conversation = {"title": ATTACKS[0], "options": {"top_p": {}}, "messages": [*odd, hostile]}
    file = {"format": "omlx_server conversations 1", "conversations": [conversation, 3]}
    with visits.open() as page:
        given = page.get_by_label("File of conversations")
        given.set_input_files(
            {"name": "bad.json", "mimeType": "application/json", "buffer": b"[" * 100}
        )
        expect(page.get_by_text("This file is no JSON.")).to_be_visible()
        given.set_input_files(
            {"name": "c.json", "mimeType": "application/json", "buffer": orjson.dumps(file)}
        )
        page.get_by_role("link", name="<script>").click()
        expect(page.locator(".answer .markdown")).to_contain_text("<img src=x")
        expect(page.locator(".message")).to_have_count(1)
        assert harmless(page)


def more(name: str) -> dict[str, object]:
    return {"aliases": [name], "path": name, "abilities": [], "presets": [name], "fit": None}


def test_hostile_names_show_as_text(visits: Visits) -> None:
    names = [attack[:200] for attack in ATTACKS[:18]]
    shape = {"kind": "chat", "state": "absent", "pinned": False, "default": False, "in_use": 0}
    numbers = {"weight_bytes": None, "disk_bytes": 1, "context_length": 1, "ttl_seconds": 0}
    listed = [
        {"name": name, "names": [name], **shape, **numbers, "problem": name, **more(name)}
        for name in names
    ]

    def models(route: Route) -> None:
        route.fulfill(json={"data": [{"id": name} for name in names]})

    def admin(route: Route) -> None:
        body = {"models": listed, "memory": {"limit": 1, "weights": 1}}
        route.fulfill(body=orjson.dumps(body), content_type="application/json")

    with visits.open("log") as page:
        page.route("**/v1/models", models)
        page.route("**/admin/models", admin)
        page.goto(f"{visits.url}/#models")
        expect(page.locator(".model")).to_have_count(len(names))
        expect(page.get_by_role("heading", name="<script>").first).to_be_visible()
        expect(page.get_by_role("heading", name="[U+202E]gnp.exe")).to_be_visible()
        page.goto(f"{visits.url}/#talk")
        choice = page.get_by_label("Model", exact=True)
        expect(choice.locator("option")).to_have_count(len(names))
        assert not page.evaluate("'hacked' in window")
        assert page.locator("main script, main iframe, main style").count() == 0
        assert not overflows(page)
