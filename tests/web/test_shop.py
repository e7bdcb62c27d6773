"""Models that are chosen, fetched, renamed and deleted in the page."""

from pathlib import Path

from playwright.sync_api import Dialog, Locator, Page, Route, expect

from tests.api.harness import ServerProcess
from tests.models.fake_hub import Faults
from tests.web.visits import Visits, overflows, shown

NAME = "org/away"


def search(page: Page, words: str) -> None:
    page.get_by_label("Model", exact=True).fill(words)
    page.get_by_role("button", name="Search the hub").click()


def test_usual_models_say_whether_they_fit_and_the_servers_own_stays(visits: Visits) -> None:
    with visits.open("models", width=390) as page:
        shown(page, "models")
        offers = page.get_by_role("list", name="Models to get").get_by_role("listitem")
        one = offers.filter(has_text="mlx-community/Qwen3.5-4B-MLX-4bit")
        expect(one).to_contain_text("about 3.00 GB, 262,144 tokens")
        for words in ("tools", "thinking", "images"):
            expect(one.get_by_text(words, exact=True)).to_be_visible()
        expect(one.locator(".badge").first).to_have_text("fits")
        large = offers.filter(has_text="qwen3.5-122b-a10b")
        expect(large.locator(".badge").first).to_have_text("too large")
        expect(offers.get_by_text("best that fits")).to_have_count(1)
        model = page.locator(".model").filter(has_text="org/tiny")
        model.get_by_text("Details").click()
        expect(model.get_by_text("The server was started with it")).to_be_visible()
        expect(model.get_by_role("button", name="Delete org/tiny")).to_have_count(0)
        assert not overflows(page)


def test_a_model_that_is_here_tells_no_size_to_download(visits: Visits) -> None:
    def tell(route: Route) -> None:
        told = route.fetch().json()
        for offer in told["models"]:
            offer |= {"here": offer["name"] == "starter"}
        route.fulfill(json=told)

    with visits.open("models") as page:
        page.route("**/admin/models/search*", tell)
        page.reload()
        offers = page.locator(".offer")
        expect(offers.filter(has_text="minilm")).to_contain_text("83.5 MB to download")
        starter = offers.filter(has_text="starter")
        expect(starter.get_by_text("here", exact=True)).to_be_visible()
        expect(starter).not_to_contain_text("to download")
        page.unroute_all(behavior="wait")


def test_a_model_is_searched_for_paused_resumed_and_deleted(
    visits: Visits, server: ServerProcess, models: Path, faults: Faults
) -> None:
    weights = models / NAME / "model.safetensors"
    with visits.open("models") as page:
        search(page, "away")
        offer = page.locator(".offer").filter(has_text=NAME)
        expect(offer).to_contain_text("1.00 GB")
        expect(offer).to_contain_text("thinking")
        faults.rate = 20_000
        offer.get_by_role("button", name=f"Get {NAME}").click()
        bar = page.get_by_role("progressbar", name=f"Download of {NAME}")
        expect(bar).to_be_visible()
        look_elsewhere(page)
        page.get_by_role("button", name=f"Pause {NAME}").click()
        expect(page.locator(".fetch").get_by_text("paused")).to_be_visible()
        assert not weights.exists()
        page.route("**/admin/models", tell_of_half_a_model)
        look_elsewhere(page)
        expect(page.locator(".model").filter(has_text="org/other")).to_be_visible()
        model = page.locator(".model").filter(has_text=NAME)
        expect(model).to_have_count(0)  # what is on its way has not failed
        page.unroute("**/admin/models")
        faults.rate = 0
        page.get_by_role("button", name=f"Resume {NAME}").click()
        expect(model.locator(".badge").first).to_have_text("not loaded")
        expect(page.locator(".fetch")).to_have_count(0)
        assert weights.is_file()
        pull_again(page)
        rename(page, server)
        model.get_by_role("button", name=f"Load {NAME}").click()
        expect(model.locator(".badge").first).to_have_text("loaded")
        refuse_deletion(page, model.get_by_role("button", name=f"Delete {NAME}"))
        assert weights.is_file()
        page.once("dialog", lambda dialog: dialog.accept())
        model.get_by_role("button", name=f"Delete {NAME}").click()
        expect(model).to_have_count(0)
    assert not weights.parent.exists()


def refuse_deletion(page: Page, button: Locator) -> None:
    questions: list[str] = []

    def refuse(dialog: Dialog) -> None:
        questions.append(dialog.message)
        dialog.dismiss()

    page.once("dialog", refuse)
    button.click()
    [question] = questions
    assert question.startswith(f"Delete {NAME}, ")


def look_elsewhere(page: Page) -> None:
    page.evaluate("location.hash = 'settings'")
    shown(page, "settings")
    page.evaluate("location.hash = 'models'")


def tell_of_half_a_model(route: Route) -> None:
    told = route.fetch().json()
    half = {"name": NAME, "names": [NAME], "state": "failed"}
    route.fulfill(json=told | {"models": [*told["models"], told["models"][0] | half]})


def pull_again(page: Page) -> None:
    """What is here is checked, and nothing is fetched; the hub knows no org/other."""
    page.get_by_label("Model", exact=True).fill("org/other")
    page.get_by_role("button", name="Get", exact=True).click()
    problem = page.locator(".fetch").get_by_role("alert")
    expect(problem).to_contain_text("org/other was not found on Hugging Face")
    expect(page.locator(".fetch").get_by_role("progressbar")).to_have_count(0)
    page.get_by_role("button", name="Dismiss org/other").click()
    page.get_by_label("Model", exact=True).fill(NAME)
    page.get_by_role("button", name="Get", exact=True).click()
    expect(page.locator(".fetch")).to_have_count(0)
    expect(page.locator(".resolved")).to_contain_text("It is here")


def rename(page: Page, server: ServerProcess) -> None:
    """Give the model an alias, which requests may use at once, and take it back."""
    model = page.locator(".model").filter(has_text=NAME)
    model.get_by_text("Details").click()
    expect(model).to_contain_text("With 32k tokens of context")
    field = model.get_by_label(f"New alias of {NAME}")
    field.fill("org/tiny")
    expect(model.get_by_text("A model has this name already.")).to_be_visible()
    field.fill("farther")
    field.press("Enter")
    expect(model).to_contain_text("also away, farther")
    key = {"authorization": "Bearer key-of-the-page"}
    served = server.http.get(f"{server.url}/v1/models", headers=key).json()["data"]
    assert "farther" in {each["id"] for each in served}
    assert server.config.read_text().startswith("[auth]")
    model.get_by_role("button", name="Remove the alias farther").click()
    expect(model).not_to_contain_text("farther")


def test_a_hub_that_is_away_is_told_beside_the_usual_models(visits: Visits, faults: Faults) -> None:
    faults.error_code = "Broken"
    try:
        with visits.open("models") as page:
            search(page, "qwen3.5")
            expect(page.get_by_text("The hub can't search")).to_be_visible()
            expect(page.locator(".offer").filter(has_text="qwen3.5-4b")).to_be_visible()
    finally:
        faults.error_code = ""
