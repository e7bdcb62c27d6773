"""While an answer is awaited, the page says what it waits for."""

import re
from collections.abc import Callable
from typing import Any

from playwright.sync_api import Page, Route, expect

from tests.api.harness import CHAT
from tests.web.visits import Visits, answered, say, set_options, shown, stream_of

AT_WORK = {
    "model": "org/tiny",
    "waits_for": None,
    "load": None,
    "prompt_tokens": 8000,
    "computed_tokens": 2000,
    "output_tokens": 0,
    "tokens_per_second": 512.4,
    "seconds": 12.3,
}


def tell(page: Page, before: int = 0, **request: object) -> None:
    page.unroute("**/progress/*")
    told = {"request": AT_WORK | request, "before": before}
    page.route("**/progress/*", lambda route: route.fulfill(json=told))
    page.clock.run_for(1100)  # it is asked each second


def hold_answers(page: Page) -> Callable[[], None]:
    """Let chats wait until what is returned is called."""
    held: list[Route] = []
    page.route(f"**{CHAT}", lambda route: held.append(route))
    body = stream_of(({"content": "Here."},), "stop")

    def release() -> None:
        held[0].fulfill(headers={"content-type": "text/event-stream"}, body=body)

    return release


def test_each_wait_is_said(visits: Visits) -> None:
    with visits.open(width=390) as page:
        shown(page, "talk")
        page.clock.install()
        release = hold_answers(page)
        answer = say(page, "Hello")
        tell(page, place="queued", waits_for="its model")
        waiting = answer.locator(".waiting")
        expect(waiting).to_have_text("Loading org/tiny, 13 s")
        loads = page.get_by_role("progressbar", name="Weights of org/tiny in memory")
        expect(loads).to_have_count(0)
        load = {"bytes": 1_250_000_000, "total": 5_000_000_000}
        tell(page, place="queued", waits_for="its model", load=load)
        expect(waiting).to_have_text("Loading org/tiny: 1.25 GB of 5.00 GB, 13 s")
        expect(loads).to_have_attribute("value", "1250000000")
        expect(loads).to_have_attribute("max", "5000000000")
        tell(page, place="queued", waits_for="rows", before=2)
        expect(waiting).to_have_text("In the queue behind 2 requests, waiting for a free place")
        tell(page, place="prefilling")
        expect(waiting).to_have_text("Reading the prompt: 2,000 of 8,000 tokens, 512 tok/s")
        bar = page.get_by_role("progressbar", name="Tokens of the prompt that are read")
        expect(bar).to_have_attribute("value", "2000")
        tell(page, place="decoding")
        expect(waiting).to_have_text("Waiting for the first token")
        expect(bar).to_have_count(0)
        release()
        expect(answered(page).locator(".markdown")).to_have_text("Here.")
        expect(waiting).to_have_count(0)


def test_thoughts_tell_their_time_and_tokens_of_the_real_server(visits: Visits) -> None:
    with visits.open() as page:
        page.get_by_label("Model", exact=True).select_option("org/thinker")
        set_options(page, {"ignore_eos": True}, max_tokens=1500)
        with page.expect_request(f"**{CHAT}") as sent:
            say(page, "Think")
        id = sent.value.headers["x-request-id"]
        with page.expect_response(
            lambda response: response.url.endswith(f"/progress/{id}") and told_of(response) > 0
        ):
            pass
        summary = page.locator(".thoughts summary")
        expect(summary).to_have_text(re.compile(r"Thinking · [\d.]+ m?s · [\d,]+ tokens"))
        page.get_by_role("button", name="Stop").click()
        answered(page)
        set_options(page, {"ignore_eos": True}, max_tokens=60)
        page.get_by_role("button", name="Regenerate").click()
        answered(page)
        expect(summary).to_have_text(re.compile(r"Thoughts · [\d.]+ m?s · \d+ tokens"))
        page.reload()
        expect(summary).to_have_text(re.compile(r"Thoughts · [\d.]+ m?s · \d+ tokens"))


def told_of(response: Any) -> int:
    request = response.json()["request"]
    return int(request["output_tokens"]) if request else 0
