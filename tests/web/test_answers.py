"""Answers as they were meant: formulas, code in colours, tables and lists."""

import re

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.api.harness import Json
from tests.web.visits import Visits, answer_with, answered, say, set_options, shown

FORMULAS = r"""Inline $e^{i\pi} + 1 = 0$ and \(a_1 * b_2 * c_3\).

$$
\int_0^1 x
= \frac{1}{2}
$$

\[
\begin{aligned} a &= b \\ &= c \end{aligned}
\]

1. Within a list:
   $$\mathbb{R}^n$$
2. \[ x = y \] amid the $n$th text

Text: $5 and $10, US$3-$4, \$6, `$x$`, $\nonsense{x}$.

```
$x$
```"""
TEXTS = ("$5 and $10, US$3-$4, $6", "$x$", r"$\nonsense{x}$")
PYTHON = 'def f(x: int) -> str:\n    return f"{x}"  # $y$\n'
# Shows longer and longer beginnings of a text, as a stream does; `look` is called after each.
GROW = r"""async ([text, step]) => {
    const { show } = await import("/web/parts/markdown.js");
    const box = document.createElement("div");
    box.className = "markdown";
    document.querySelector(".column").append(box);
    show(box, "$x$\n\n```js\n1\n```\n");  // both libraries are loaded
    while (!box.querySelector("math") || !box.querySelector(".hljs-number")) {
        await new Promise(requestAnimationFrame);
    }
    const seen = [];
    for (let end = 1; end < text.length + step; end += step) {
        show(box, text.slice(0, end), end < text.length);
        seen.push(look(box, text.slice(0, end)));
    }
    return seen;
}"""


def grown(page: Page, text: str, look: str, step: int) -> list[Json]:
    shown(page, "talk")
    page.evaluate(f"void (window.look = {look})")
    return list(page.evaluate(GROW, [text, step]))


def answer_of(page: Page, text: str) -> Locator:
    """The body of an answer with this text."""
    answer_with(page, *({"content": text[at : at + 20]} for at in range(0, len(text), 20)))
    say(page, "Show it")
    return answered(page).locator(".markdown")


def test_formulas_are_shown_and_prices_stay_text(visits: Visits) -> None:
    with visits.open() as page:
        body = answer_of(page, FORMULAS)
        expect(body.locator("math")).to_have_count(7)
        expect(body.locator("math[display=block]")).to_have_count(4)
        expect(body.locator("li math")).to_have_count(3)
        expect(body.locator("math").nth(1)).to_contain_text("a1∗b2∗c3")
        for text in TEXTS:
            expect(body).to_contain_text(text)
        expect(body.locator("em")).to_have_count(0)
        page.evaluate("navigator.clipboard.writeText = async (text) => (window.copied = text)")
        answered(page).get_by_role("button", name="Copy").last.click()
        assert page.evaluate("window.copied") == FORMULAS


def test_a_formula_under_way_is_text_and_a_complete_one_is_typeset_once(visits: Visits) -> None:
    look = r"""(box) => {
        const first = (window.first ??= box.querySelector("math"));
        const formulas = [...box.querySelectorAll("math")];
        const errors = box.querySelectorAll("merror, .temml-error, em, strong, h1, h2, hr").length;
        return { errors, kept: !first || formulas[0] === first, count: formulas.length };
    }"""
    text = "$$\n\\frac{a}{b}\n= c\n- d * e * f\n$$\n\nThen $$x$$ and\n\n\\[\n\\sqrt{\n2}\n\\]\n"
    with visits.open() as page:
        seen = grown(page, text, look, step=1)
        assert not any(one["errors"] for one in seen)
        assert all(one["kept"] for one in seen)
        counts = [one["count"] for one in seen]
        assert counts == sorted(counts)
        assert counts[-1] == 3


def test_long_code_and_long_lines_have_no_colours(visits: Visits) -> None:
    with visits.open() as page:
        texts = ("x = 1\n" * 4000, "x = '" + "A" * 500 + "'\n", "x = 1\n")
        body = answer_of(page, "\n".join(f"```ini\n{text}```\n" for text in texts))
        code = body.locator("pre code")
        expect(code.last.locator("span").first).to_be_visible()
        assert [one.locator("span").count() > 0 for one in code.all()] == [False, False, True]


def test_code_has_colours_and_stays_the_text_that_it_is(visits: Visits) -> None:
    with visits.open() as page:
        body = answer_of(page, f"```python\n{PYTHON}```\n\n```nonsense\nif\n```\n")
        code = body.locator("pre code")
        expect(code.first.locator(".hljs-keyword").first).to_have_text("def")
        expect(code.first.locator(".hljs-comment")).to_have_text("# $y$")
        assert code.first.text_content() == PYTHON.rstrip("\n")
        expect(code.last).to_have_text("if")
        expect(code.last.locator("span")).to_have_count(0)


@pytest.mark.parametrize("indent", ["", "   "])
def test_what_is_coloured_is_not_coloured_again_at_each_token(visits: Visits, indent: str) -> None:
    look = r"""(box, text) => {
        const codes = [...box.querySelectorAll("pre code")];
        const texts = codes.map((code) => code.textContent.trimEnd());
        window.times ??= 0;
        const first = codes[0]?.querySelector("span");
        if (first && first !== window.before) window.times += 1;
        window.before = first;
        return { times: window.times, colours: codes.map((code) => code.childElementCount), texts };
    }"""
    lines = "".join(f"{indent}x = {n}  # line {n}\n" for n in range(120))
    fence = f"{indent}```python\n{lines}{indent}```\n"
    text = f"1. code:\n{fence}2. more:\n{fence}" if indent else fence + "\nThen\n\n" + fence
    with visits.open() as page:
        seen = grown(page, text, look, step=7)
        last = seen[-1]
        assert last["texts"] == 2 * ["\n".join(f"x = {n}  # line {n}" for n in range(120))]
        assert last["colours"] == [240, 240]
        assert last["times"] < 40 < len(seen) / 10


def test_libraries_come_when_they_are_needed(visits: Visits) -> None:
    names = ("temml-", "highlight-")
    with visits.open() as page:
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.reload()
        answer_of(page, "Costs $5 and $10.\n\n```\nplain\n```\n")
        assert not [url for url in asked for name in names if name in url]
        answer_of(page, "$x$\n\n```c\nint x;\n```\n")
        expect(page.locator(".answer .hljs-type")).to_have_text("int")
        expect(page.locator(".answer math")).to_have_text("x")
        assert all(any(name in url for url in asked) for name in names)


def test_tables_lists_and_tasks_look_as_written(visits: Visits) -> None:
    table = "| a | b | c |\n|---|:-:|--:|\n| 1 | 2 | 3 |\n"
    tasks = "- [x] done\n- [ ] open\n- no task\n"
    code = "3. third\n4. with code:\n   ```c\n   int x;\n   ```\n"
    align = "getComputedStyle(one).textAlign"
    with visits.open() as page:
        body = answer_of(page, f"{table}\n{tasks}\n{code}\n| {'wide | ' * 60}\n|{'---|' * 60}\n")
        aligned = body.locator("td").evaluate_all(f"(all) => all.map((one) => {align})")
        assert [one.removeprefix("-webkit-") for one in aligned] == ["start", "center", "right"]
        styles = "(all) => all.map((one) => getComputedStyle(one).listStyleType)"
        assert body.locator("ul li").evaluate_all(styles) == ["none", "none", "disc"]
        expect(body.locator("ul li").first).to_have_text("☑ done")
        expect(body.locator("ol")).to_have_attribute("start", "3")
        expect(body.locator("li figure.code .hljs-type")).to_have_text("int")
        wide = body.locator(".block").last
        assert wide.evaluate("(one) => one.scrollWidth > one.clientWidth && one.tabIndex === 0")


def test_headings_are_below_the_pages_own_and_skip_no_level(visits: Visits) -> None:
    text = "### One\n\n###### Two\n\n> # Three\n\n- ## Four\n\n# Five\n"
    with visits.open() as page:
        headings = answer_of(page, text).locator("h1, h2, h3, h4, h5, h6")
        expect(headings).to_have_text(["One", "Two", "Three", "Four", "Five"])
        levels = headings.evaluate_all("(all) => all.map((one) => one.localName)")
        assert levels == ["h2", "h3", "h2", "h3", "h2"]


def test_a_stream_tells_its_speed_and_a_button_leads_to_its_end(visits: Visits) -> None:
    with visits.open() as page:
        page.set_viewport_size({"width": 390, "height": 420})
        page.evaluate("void (window.box = () => document.querySelector('.messages'))")
        set_options(page, {"ignore_eos": True}, max_tokens=3500)
        say(page, "Count for ever")
        expect(page.locator(".speed")).to_have_text(re.compile(r"^[\d.,]+ tok/s$"))
        page.wait_for_function("() => box().scrollHeight > box().clientHeight + 300")
        button = page.get_by_role("button", name="To the end")
        expect(button).to_have_count(0)
        page.locator(".messages").hover()
        page.mouse.wheel(0, -300)
        button.click()
        expect(button).to_have_count(0)
        page.keyboard.press("Escape")
        expect(page.locator(".speed")).to_have_count(0)
        page.wait_for_function(
            "() => box().scrollHeight - box().scrollTop - box().clientHeight < 80"
        )
