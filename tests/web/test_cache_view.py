"""Memory and cache: what is there, where a prompt leaves it, and who is at work."""

import re
from threading import Thread

from playwright.sync_api import expect

from tests.api.harness import ServerProcess
from tests.web.asking import OWNER, SYSTEM, ask, text_of, tokens
from tests.web.visits import Visits, answered, say, set_options, shown


def test_a_prompt_shows_its_hit_and_the_token_where_it_leaves(
    visits: Visits, server: ServerProcess
) -> None:
    asked, other = "Where is the lazy dog today?", "Where is the lazy cat today?"
    ask(server, asked)
    pairs = zip(tokens(server, asked), tokens(server, other), strict=False)
    leaves = next(place for place, (one, two) in enumerate(pairs) if one != two)
    with visits.open("cache") as page:
        shown(page, "cache")
        page.get_by_label("System prompt").fill(SYSTEM)
        page.get_by_label("Message").fill(other)
        page.get_by_role("button", name="Compare").click()
        result = page.get_by_role("region", name="Comparison")
        expect(result.locator(".at")).to_have_text(str(leaves))
        expect(result.locator(".strip .hot")).to_have_count(leaves // 16 + bool(leaves % 16))
        assert result.locator(".strip .none").count() > 0
        first = result.locator(f'.leaves + [data-token="{leaves}"]')
        expect(first).to_have_text(text_of(server, tokens(server, other)[leaves]))
        expect(result.get_by_text("What is cached goes on from there with")).to_be_visible()
        ask(server, other)
        page.get_by_role("button", name="Compare").click()
        expect(result).to_contain_text("It does not leave what is cached.")
        expect(result.locator(".strip .none")).to_have_count(0)
        written = page.get_by_text(re.compile("Written to the disk: .* of 100 GB today"))
        expect(written).to_be_visible()


def test_a_conversation_of_the_page_is_compared(visits: Visits) -> None:
    with visits.open() as page:
        page.get_by_label("Model", exact=True).select_option("org/tiny")
        set_options(page, {"ignore_eos": True})
        say(page, "What does the quick brown fox do all day long in the plage?")
        answered(page)
        page.goto(f"{visits.url}/#cache")
        page.get_by_role("combobox", name="Prompt").select_option(index=1)
        page.get_by_role("button", name="Compare").click()
        result = page.get_by_role("region", name="Comparison")
        expect(result).to_contain_text("It does not leave what is cached.")
        expect(result.get_by_text("in the plage?")).to_be_visible()


def test_the_map_has_a_square_for_each_block_and_arrow_keys_walk_it(
    visits: Visits, server: ServerProcess
) -> None:
    ask(server, "One branch of the tree, quick as a fox and long enough for blocks")
    ask(server, "Another branch of the tree, lazy as a dog and long enough for blocks")
    told = server.http.get(f"{server.url}/admin/cache?model=org/tiny", headers=OWNER).json()
    with visits.open("cache") as page:
        expect(page.locator(".map rect.block")).to_have_count(len(told["blocks"]))
        assert page.locator(".map .branch").count() > 0
        detail = page.locator(".detail")
        expect(detail).to_contain_text("Tokens 0 to 15")
        page.locator(".map").focus()
        page.keyboard.press("ArrowRight")
        expect(detail).to_contain_text("Tokens 16 to 31")
        expect(page.get_by_role("row", name=re.compile("^diverged"))).to_be_visible()
        expect(page.get_by_role("img", name=re.compile("^Of .*weights"))).to_be_visible()


def test_a_request_is_seen_in_its_lane_and_then_in_the_log(
    visits: Visits, server: ServerProcess
) -> None:
    fields = {"max_tokens": 2000, "ignore_eos": True}
    with visits.open("cache") as page:
        lane = page.get_by_role("region", name="decoding")
        expect(lane).to_contain_text("0")
        at_work = Thread(target=ask, args=(server, "Work long"), kwargs=fields)
        at_work.start()
        expect(lane.locator(".request .name")).to_have_text("org/tiny")
        expect(lane).to_contain_text("tok/s")
        at_work.join()
        expect(lane.locator(".request")).to_have_count(0)
        page.goto(f"{visits.url}/#log")
        row = page.get_by_role("row").nth(1)
        expect(row).to_contain_text("/v1/chat/completions")
        expect(row).to_contain_text("2,000")
        expect(row).to_contain_text("length")
