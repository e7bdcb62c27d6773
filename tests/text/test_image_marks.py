"""Images in messages: their marks pass through a template, and tokens take their place."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omlx_server.core.images import ImageSpan, token_ids
from omlx_server.errors import BadRequest, TooManyTokens
from omlx_server.text.image_marks import ImageMarks, ImagePlaceholder
from omlx_server.text.templates.template import ChatTemplate
from tests.text import chat_templates
from tests.text.conftest import Load

PAD = "<|endoftext|>"
ONE = ImagePlaceholder(f"<think>{PAD}</think>", (ImageSpan(0, 4, b"one", 2),))
TILES = ImagePlaceholder(
    f"\n{PAD}|{PAD}\n", (ImageSpan(0, 3, b"left", 3), ImageSpan(0, 3, b"right", 3))
)

TEMPLATE = chat_templates.FOR_FAMILY["byte_level"][0]


@pytest.fixture(name="template")
def _template(load: Load) -> ChatTemplate:
    return ChatTemplate(load("byte_level", TEMPLATE))


@pytest.fixture(name="marks")
def _marks(load: Load) -> ImageMarks:
    [pad] = load("byte_level", TEMPLATE).encode_rendered(PAD, str)
    return ImageMarks(pad)


def user(content: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": content}]


def test_image_tokens_take_the_place_of_a_mark(template: ChatTemplate, marks: ImageMarks) -> None:
    ids = template.encode(user(f"What is {marks.add(ONE)}?"), images=marks)
    [placed] = marks.spans_in(ids)
    assert tuple(ids[placed.start : placed.stop]) == token_ids(b"one", 4)
    before, behind = ids[: placed.start], ids[placed.stop :]
    decode = template._tokenizer.decode_all
    assert decode(before).endswith("What is <think>")
    assert decode(behind).startswith("</think>?")


def test_a_image_of_several_runs_has_them_in_order(
    template: ChatTemplate, marks: ImageMarks
) -> None:
    content = f"{marks.add(TILES)} and {marks.add(ONE)}"
    placed = marks.spans_in(template.encode(user(content), images=marks))
    assert [run.digest for run in placed] == [b"left", b"right", b"one"]
    assert all(before.stop <= after.start for before, after in pairwise(placed))


def test_one_image_twice_is_found_twice(template: ChatTemplate, marks: ImageMarks) -> None:
    mark = marks.add(ONE)
    assert len(marks.spans_in(template.encode(user(f"{mark} {mark}"), images=marks))) == 2


def test_what_a_client_writes_is_no_image(template: ChatTemplate, marks: ImageMarks) -> None:
    """Neither the placeholder nor the digits of another request."""
    other = ImageMarks(marks._placeholder)
    hostile = f"{PAD} {other.add(ONE)} <think>{PAD}</think> {marks.add(ONE)}"
    assert len(marks.spans_in(template.encode(user(hostile), images=marks))) == 1


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.lists(st.text("ab \n1.", max_size=9), min_size=1, max_size=4))
def test_text_around_images_is_encoded_as_around_the_model_s_own_markup(
    load: Load, texts: list[str]
) -> None:
    tokenizer = load("byte_level", TEMPLATE)
    template, [pad] = ChatTemplate(tokenizer), tokenizer.encode_rendered(PAD, str)
    marks = ImageMarks(pad)
    messages = user(marks.add(ONE).join(texts))
    ids = template.encode(messages, images=marks)
    for run in reversed(marks.spans_in(ids)):
        ids[run.start : run.stop] = [pad]
    own = template.render(user("MARK".join(texts))).replace("MARK", ONE.markup)
    assert ids == tokenizer.encode_rendered(own, str)


def test_the_tokens_of_images_count(template: ChatTemplate, marks: ImageMarks) -> None:
    content = f"a {marks.add(ONE)} b {marks.add(TILES)}"
    assert marks.count_tokens(content) == 10
    assert marks.remove_marks(content) == "a  b "
    ids = template.encode(user(content), images=marks)
    assert template.encode(user(content), images=marks, most=len(ids)) == ids
    for most in (len(ids) - 1, 9, 1):
        with pytest.raises(TooManyTokens) as caught:
            template.encode(user(content), images=marks, most=most)
        assert most < caught.value.at_least <= len(ids)


def test_a_template_that_shows_a_placeholder_of_its_own_is_refused(
    template: ChatTemplate, marks: ImageMarks
) -> None:
    broken = ImagePlaceholder("no placeholder", ONE.runs)
    with pytest.raises(BadRequest, match="can't show these images"):
        template.encode(user(marks.add(broken)), images=marks)
