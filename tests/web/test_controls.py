"""Each control of each view is used with a real click, at the widths of a phone, a narrow window
and a desktop."""

import re

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.api.harness import ServerProcess
from tests.sweeps import daily
from tests.web.asking import ask
from tests.web.visits import Visits, answer_with, answered, say, shown

WIDTHS = (390, 800, 1440)
NARROW = 980
CODE = "Some code:\n\n```python\nprint(1)\n```"
# Notes which controls a real click has reached, and which ones were shown. A setting counts by its
# kind, since there are hundreds; what changes in a name is left out.
WATCH_CLICKS = r"""() => {
    const kinds = "a[href]:not(.skip), summary, :is(button, input, select, textarea):enabled";
    const view = () => location.hash.slice(1).split("/")[0] || "talk";
    const text = ({ nodeType, data }) => (nodeType === Node.TEXT_NODE ? data : "");
    const words = (label) => [...label.childNodes].map(text).join("");
    const label = ({ ariaLabel, labels, textContent }) =>
        ariaLabel || (labels?.[0] ? words(labels[0]) : textContent);
    const name = (one) => {
        if (one.closest(".conversations a")) return "a conversation";
        if (one.closest(".setting")) return `a setting: ${one.className} ${one.type}`;
        const whole = label(one).trim().replace(/\s+/g, " ").replace("Copied", "Copy")
            .replace(/(?<=^Thoughts) · .*/, "");
        return whole.replace(/org\/\w+|(?<=^(Delete |Rename |Get |Colours: ))\S.*/, "…");
    };
    const visible = (one) => one.checkVisibility() && one.offsetWidth > 1;
    const key = (one) => `${one.closest("nav") ? "frame" : view()}: ${name(one)}`;
    const [seen, used] = [new Map(), new Set()];
    const look = () => {
        const controls = [...document.querySelectorAll(kinds)].filter(visible);
        controls.forEach((one) => seen.set(key(one), one.id));
    };
    addEventListener("click", (event) => {
        look();
        const control = event.target.closest(kinds);
        if (event.isTrusted && control) used.add(key(control));
    }, true);
    window.unused = () => (look(), [...seen].filter(([one]) => !used.has(one)));
}"""


def button(place: Page | Locator, name: str) -> Locator:
    return place.get_by_role("button", name=name, exact=True)


def go(page: Page, view: str) -> None:
    page.get_by_role("navigation").get_by_role("link", name=view).click()
    expect(page.get_by_role("heading", name=view, level=1)).to_be_attached()


def open_list(page: Page, width: int) -> Locator:
    """Show the list of conversations, which a wide window always shows."""
    sidebar = page.locator(".sidebar")
    if width <= NARROW:
        button(page, "Conversations").click()
    expect(sidebar).to_be_visible()
    return sidebar


@pytest.mark.parametrize("width", [width for width in WIDTHS if width <= NARROW])
def test_a_narrow_window_opens_and_closes_the_list(visits: Visits, width: int) -> None:
    with visits.open(width=width, touch=True) as page:
        sidebar, opens = page.locator(".sidebar"), button(page, "Conversations")
        opens.tap()
        expect(sidebar).to_be_visible()
        scrim = page.locator(".scrim")
        box = scrim.bounding_box()
        assert box is not None
        scrim.tap(position={"x": box["width"] - 20, "y": 200})
        expect(sidebar).to_be_hidden()
        expect(opens).to_be_focused()
        page.keyboard.press("Enter")
        hides = button(page, "Hide conversations")
        expect(hides).to_be_focused()
        page.keyboard.press("Escape")
        expect(sidebar).to_be_hidden()
        expect(opens).to_be_focused()
        opens.click()
        expect(hides).to_be_focused()
        for _ in range(3):
            page.keyboard.press("Tab")  # past Import, the last control, as nothing can be exported
        expect(sidebar).to_be_hidden()
        answer_with(page, {"content": "Yes."})
        say(page, "Is it kept?")
        answered(page)
        opens.tap()
        button(sidebar, "Delete Is it kept?").tap()
        expect(button(page, "Undo")).to_be_visible()
        expect(sidebar).to_be_visible()
        sidebar.get_by_role("link", name="New conversation").tap()
        expect(sidebar).to_be_hidden()
        expect(page.locator(".message")).to_have_count(0)


@pytest.mark.parametrize("width", daily(WIDTHS, (390,)))
def test_each_control_answers_a_real_click(
    visits: Visits, server: ServerProcess, width: int
) -> None:
    ask(server, "A line of the log")
    config = server.config.read_text()
    with visits.open(width=width) as page:
        shown(page, "talk")
        page.evaluate(WATCH_CLICKS)
        use_talk(page)
        use_options(page)
        use_conversations(page, width)
        use_cache(page)
        use_models(page)
        use_log(page)
        use_settings(page)
        stays = page.get_by_label("Stay signed in")
        if stays.is_visible():
            stays.click()
        button(page, "Colours: auto").click()
        expect(page.locator("html")).to_have_attribute("data-theme", "light")
        go(page, "Talk")
        button(page, "Sign out").click()
        sign_in(page)
        unused = page.evaluate("unused()")
        assert not unused, unused
    server.config.write_text(config)  # the other tests have the same server


def sign_in(page: Page) -> None:
    page.get_by_label("Key of this server").click()
    page.keyboard.type("key-of-the-page")
    page.get_by_role("main").get_by_label("Stay signed in").click()
    button(page, "Enter").click()
    expect(page.get_by_label("Message", exact=True)).to_be_visible()


def use_talk(page: Page) -> None:
    thought = {"reasoning_content": "Hm."}
    answer_with(page, thought, {"content": CODE})
    page.get_by_label("Model", exact=True).click()
    page.keyboard.press("Escape")
    field = page.get_by_label("Message", exact=True)
    field.click()
    page.keyboard.type("First words")
    button(page, "Send").click()
    answer = answered(page)
    answer.get_by_text("Thoughts").click()
    expect(answer.get_by_text("Hm.")).to_be_visible()
    for copy in page.get_by_role("button", name=re.compile("^Cop(y|ied)$")).all():
        copy.click()
        expect(copy).to_have_text("Copied")
    button(answer, "Regenerate").click()
    answered(page)
    button(answer, "Earlier version").click()
    expect(answer.locator(".versions")).to_have_text("1 / 2")
    button(answer, "Later version").click()
    expect(answer.locator(".versions")).to_have_text("2 / 2")
    button(page, "Edit").click()
    editor = page.get_by_label("Edit your message")
    editor.click()
    expect(editor).to_be_focused()
    button(page, "Cancel").click()
    expect(editor).to_have_count(0)
    button(page, "Edit").click()
    editor.fill("Other words")
    button(page, "Send again").click()
    expect(page.locator(".user .said")).to_have_text("Other words")
    answered(page)


def use_options(page: Page) -> None:
    button(page, "Options").click()
    options = page.get_by_role("region", name="Options")
    for field in options.locator("input, textarea, select").all():
        field.click()
        expect(field).to_be_focused()
        page.keyboard.press("Escape")
    options.get_by_label("Name of the preset").fill("Mine")
    button(options, "Save preset").click()
    preset = options.get_by_label("Preset", exact=True)
    preset.click()
    preset.select_option("Mine")
    button(options, "Delete preset").click()
    expect(preset).to_have_count(0)
    button(page, "Options").click()
    expect(options).to_have_count(0)


def use_conversations(page: Page, width: int) -> None:
    sidebar = open_list(page, width)
    sidebar.get_by_role("link", name="New conversation").click()
    expect(page.locator(".message")).to_have_count(0)
    sidebar = open_list(page, width)
    sidebar.locator(".conversations a").click()
    expect(page.locator(".user")).to_have_count(1)
    sidebar = open_list(page, width)
    with page.expect_download():
        button(sidebar, "Export").click()
    with page.expect_file_chooser():
        button(sidebar, "Import").click()
    if width <= NARROW:
        button(sidebar, "Hide conversations").click()
        expect(sidebar).to_be_hidden()
    sidebar = open_list(page, width)
    item = sidebar.get_by_role("listitem")
    sidebar.get_by_label("Search conversations").click()
    page.keyboard.type("other")
    item.hover()
    item.get_by_role("button", name="Rename").click()
    title = item.get_by_label("Title", exact=True)
    title.click()
    page.keyboard.press("Enter")
    item.hover()
    item.get_by_role("button", name="Delete").click()
    button(page, "Undo").click()
    expect(page.locator(".user")).to_have_count(1)
    sidebar = open_list(page, width)
    item.hover()
    item.get_by_role("button", name="Delete").click()
    expect(sidebar.locator(".conversations a")).to_have_count(0)
    button(page, "Dismiss").click()
    expect(button(page, "Undo")).to_have_count(0)
    if width <= NARROW:
        button(sidebar, "Hide conversations").click()


def use_models(page: Page) -> None:
    go(page, "Models")
    name = page.get_by_label("Model", exact=True)
    name.click()
    page.keyboard.type("org/other")
    expect(page.locator(".resolved")).to_contain_text("It is here")
    name.fill("")
    page.keyboard.type("startr")
    button(page, "starter").click()
    expect(name).to_have_value("starter")
    use_shop(page)
    model = page.get_by_role("listitem").filter(has_text="org/other")
    button(model, "Load org/other").click()
    expect(model.locator(".badge").first).to_have_text("loaded")
    button(model, "Pin org/other").click()
    button(model, "Unpin org/other").click()
    button(model, "Unload org/other").click()
    expect(model.locator(".badge").first).to_have_text("not loaded")


def use_shop(page: Page) -> None:
    page.get_by_label("Model", exact=True).fill("away")
    button(page, "Search the hub").click()
    button(page, "Get org/away").click()
    model = page.locator(".model").filter(has_text="org/away")
    page.get_by_label("Model", exact=True).fill("org/away")
    button(page, "Get").click()
    expect(page.get_by_role("list", name="Downloads")).to_have_count(0)
    model.get_by_text("Details").click()
    alias = model.get_by_label("New alias of org/away")
    alias.click()
    page.keyboard.type("org/alias")
    button(model, "Add alias").click()
    button(model, "Remove the alias org/alias").click()
    expect(button(model, "Remove the alias org/alias")).to_have_count(0)
    page.once("dialog", lambda dialog: dialog.accept())
    button(model, "Delete org/away").click()
    expect(model).to_have_count(0)
    page.get_by_label("Model", exact=True).fill("")
    button(page, "Show usual models").click()
    expect(page.get_by_role("heading", name="Usual models")).to_be_visible()


def use_cache(page: Page) -> None:
    go(page, "Memory and cache")
    expect(page.locator(".legend")).to_contain_text("running requests")
    for field in ("Model", "Prompt"):
        page.get_by_role("combobox", name=field).click()
        page.keyboard.press("Escape")
    page.get_by_label("System prompt").click()
    page.get_by_label("Message").click()
    page.keyboard.type("Where is the fox?")
    button(page, "Compare").click()
    expect(page.get_by_role("region", name="Comparison")).to_be_visible()


def use_log(page: Page) -> None:
    go(page, "Log")
    cells = page.get_by_role("row").nth(1).get_by_role("cell")
    expect(cells).to_have_count(10)
    for cell in cells.all():
        expect(cell).to_be_in_viewport(ratio=1)
    page.get_by_label("Search").click()
    errors = page.get_by_label("Errors only")
    errors.click()
    expect(errors).to_be_checked()


def use_settings(page: Page) -> None:
    go(page, "Settings")
    page.get_by_label("Search").click()
    differs = page.get_by_label("Only what differs")
    differs.click()
    differs.click()
    expect(page.get_by_role("heading", name="server", exact=True)).to_be_visible()
    for kind, key in page.evaluate("unused()"):
        if "a setting" not in kind or "reset" in kind:
            continue
        field = page.locator(f"[id='{key}']")
        field.click()
        expect(field).to_be_focused()
        if "checkbox" in kind:
            setting = page.locator(".setting").filter(has=field)
            expect(setting.get_by_role("status")).to_be_visible()
            field.click()
        page.keyboard.press("Escape")
    changed = page.locator(".setting").filter(has_text="Reset to").first
    field = page.locator(f"[id='{changed.locator('label').get_attribute('for')}']")
    changed.get_by_role("button").click()
    setting = page.locator(".setting").filter(has=field)
    expect(setting.get_by_role("button")).to_have_count(0)
