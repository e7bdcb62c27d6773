"""Prompts with images have the ids that transformers' processors give."""

import json
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer
from transformers.models.idefics3.processing_idefics3 import Idefics3Processor
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor

from omlx_server.core.images import ImageSpan
from omlx_server.errors import BadRequest, LoadFailed
from omlx_server.text.image_marks import ImageMarks, ImageMarkup, ImagePlaceholder
from omlx_server.text.templates.template import ChatTemplate
from omlx_server.text.tokenizer import Tokenizer
from tests.text import makers, vision_templates

FAMILIES = ("qwen", "gemma3", "idefics3")
# Of each family, what a template writes for an image, and the tokens of a run.
WRITTEN = {"qwen": "<|image_pad|>", "gemma3": "<start_of_image>", "idefics3": "<image>"}
RUN = {"qwen": 6, "gemma3": 16, "idefics3": 9}
Conversation = list[tuple[str, list[str | tuple[int, int]]]]
"""Roles and contents: texts, and images by their rows and columns of tiles."""


@pytest.fixture(scope="session", name="folders")
def _folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("vision")
    return {family: vision_templates.save(root / family, family) for family in FAMILIES}


def reference(folder: Path, family: str, told: Conversation) -> list[int]:
    """The ids of a conversation as transformers makes them."""
    tokenizer = loaded(folder)
    messages = [{"role": role, "content": [_part(one) for one in parts]} for role, parts in told]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    before, *behind = text.split(WRITTEN[family])
    images = [one for _, parts in told for one in parts if not isinstance(one, str)]
    for tiles, piece in zip(images, behind, strict=True):
        before += expanded(family, tiles) + piece
    ids: list[int] = tokenizer(before, add_special_tokens=False)["input_ids"]
    return ids


@cache
def loaded(folder: Path) -> Any:
    return AutoTokenizer.from_pretrained(str(folder))


def _part(one: str | tuple[int, int]) -> dict[str, str]:
    return {"type": "text", "text": one} if isinstance(one, str) else {"type": "image"}


def expanded(family: str, tiles: tuple[int, int]) -> str:
    """What the family's processor makes of what a template writes for an image."""
    if family == "gemma3":
        # Of Gemma3Processor's constructor, which wants a whole processor.
        soft = "<image_soft_token>" * RUN[family]
        return f"\n\n<start_of_image>{soft}<end_of_image>\n\n"
    if family == "qwen":
        own = SimpleNamespace(
            image_token="<|image_pad|>", image_processor=SimpleNamespace(merge_size=2)
        )
        grid = {"image_grid_thw": [np.array([1, 4, RUN[family]])]}
        return str(Qwen3VLProcessor.replace_image_token(own, grid, 0))
    own = SimpleNamespace(
        fake_image_token="<fake_token_around_image>",
        global_image_tag="<global-img>",
        image_token="<image>",
        image_seq_len=RUN[family],
    )
    sizes = {"rows": [[tiles[0]]], "cols": [[tiles[1]]]}
    return str(Idefics3Processor.replace_image_token(own, sizes, 0))


def ours(folder: Path, family: str, told: Conversation) -> list[int]:
    tokenizer = Tokenizer.load(folder)
    markup = ImageMarkup.of(family, tokenizer)
    marks = ImageMarks(markup.placeholder)
    messages = []
    for role, parts in told:
        texts = [
            one if isinstance(one, str) else marks.add(_shown(markup, family, one)) for one in parts
        ]
        messages.append({"role": role, "content": "".join(texts)})
    return marks.with_placeholders(ChatTemplate(tokenizer).encode(messages, images=marks))


def _shown(markup: ImageMarkup, family: str, tiles: tuple[int, int]) -> ImagePlaceholder:
    count = tiles[0] * tiles[1] + 1
    runs = (ImageSpan(0, RUN[family], bytes([*tiles, n]), RUN[family]) for n in range(count))
    return ImagePlaceholder(markup.write(tiles), tuple(runs))


WHOLE = (0, 0)
CONVERSATIONS: list[Conversation] = [
    [("user", ["What is on ", WHOLE, "?"])],
    [("user", [WHOLE])],
    [("user", [WHOLE, "What is this?"])],
    [("user", ["Look: ", WHOLE])],
    [("user", [WHOLE, WHOLE, " and ", WHOLE, "  \n"])],
    [
        ("system", ["Be brief."]),
        ("user", [" \nOne: ", WHOLE, "\n\nTwo: ", WHOLE, "\n"]),
        ("assistant", ["A cat."]),
        ("user", ["And this? ", WHOLE]),
    ],
    [("user", ["No image."]), ("assistant", ["None."]), ("user", ["Now: ", WHOLE, "?"])],
]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("told", CONVERSATIONS)
def test_prompts_have_the_ids_of_the_reference(
    folders: dict[str, Path], family: str, told: Conversation
) -> None:
    assert ours(folders[family], family, told) == reference(folders[family], family, told)


@pytest.mark.parametrize("tiles", [(1, 2), (2, 1), (3, 3), (2, 5)])
def test_tiles_stand_row_by_row_before_the_whole(
    folders: dict[str, Path], tiles: tuple[int, int]
) -> None:
    told: Conversation = [("user", ["Look ", tiles, WHOLE, " closely.\n", tiles])]
    folder = folders["idefics3"]
    assert ours(folder, "idefics3", told) == reference(folder, "idefics3", told)


pieces = st.text("a \n<", max_size=5) | st.just(WHOLE)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.sampled_from(FAMILIES), st.lists(pieces, min_size=1, max_size=5))
def test_any_text_around_images_is_as_in_the_reference(
    folders: dict[str, Path], family: str, parts: list[str | tuple[int, int]]
) -> None:
    """Texts side by side are one part here."""
    merged: list[str | tuple[int, int]] = []
    for part in parts:
        if isinstance(part, str) and merged and isinstance(merged[-1], str):
            merged[-1] += part
        elif part != "":
            merged.append(part)
    told: Conversation = [("user", merged or ["a"])]
    assert ours(folders[family], family, told) == reference(folders[family], family, told)


@pytest.mark.parametrize("family", FAMILIES)
def test_images_stay_in_their_order(folders: dict[str, Path], family: str) -> None:
    tokenizer = Tokenizer.load(folders[family])
    markup = ImageMarkup.of(family, tokenizer)
    marks = ImageMarks(markup.placeholder)
    runs = [ImageSpan(0, 4, bytes([n]), 4) for n in range(4)]
    a, b, c, d = (marks.add(ImagePlaceholder(markup.write(WHOLE), (run,))) for run in runs)
    messages = [
        {"role": "user", "content": f"{c} and {a}"},
        {"role": "assistant", "content": "So?"},
        {"role": "user", "content": f"{d}{b}"},
    ]
    placed = marks.spans_in(ChatTemplate(tokenizer).encode(messages, images=marks))
    assert [run.digest[0] for run in placed] == [2, 0, 3, 1]


def test_a_text_reaches_a_template_that_wants_lists(folders: dict[str, Path]) -> None:
    template = ChatTemplate(Tokenizer.load(folders["idefics3"]))
    messages = [{"role": "user", "content": "Hello"}]
    told: Conversation = [("user", ["Hello"])]
    expected = reference(folders["idefics3"], "idefics3", told)
    assert template.encode(messages) == expected
    assert "User: Hello<end_of_utterance>" in template.render(messages)
    going = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Wor"}]
    asked: dict[str, Any] = {"add_generation_prompt": False, "continue_final_message": True}
    assert template.render(going, **asked).endswith("Assistant: Wor")


def test_a_template_is_found_in_the_file_of_the_processor(tmp_path: Path) -> None:
    makers.save(tmp_path, "byte_level")
    assert not Tokenizer.load(tmp_path).chat_templates
    file = tmp_path / "chat_template.json"
    file.write_text(json.dumps({"chat_template": vision_templates.QWEN}), "utf-8")
    assert Tokenizer.load(tmp_path).chat_templates == {"default": vision_templates.QWEN}
    vision_templates.save(tmp_path, "idefics3")
    assert Tokenizer.load(tmp_path).chat_templates == {"default": vision_templates.SMOLVLM}


def test_a_template_that_shows_texts_only_gets_the_markup_in_them(tmp_path: Path) -> None:
    plain = "{% for m in messages %}<|im_start|>{{ m['role'] + ': ' + m['content'] }}{% endfor %}"
    folder = vision_templates.save(tmp_path, "qwen", plain)
    tokenizer = Tokenizer.load(folder)
    expected = "<|im_start|>user: a <|vision_start|>" + "<|image_pad|>" * 6 + "<|vision_end|> b"
    found = ours(folder, "qwen", [("user", ["a ", WHOLE, " b"])])
    assert found == tokenizer.encode(expected)


TOOLS = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for part in m['content'] %}"
    "{% if part['type'] == 'image' %}{{ '<|image_pad|>' if m['role'] == 'user' else 'nothing' }}"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
)


def test_results_of_tools_are_shown_where_the_template_shows_no_images_in_them(
    tmp_path: Path,
) -> None:
    folder = vision_templates.save(tmp_path, "qwen", TOOLS)
    told: Conversation = [("user", [WHOLE]), ("tool", ["Here: ", WHOLE]), ("user", ["b", WHOLE])]
    text = Tokenizer.load(folder).decode_all(ours(folder, "qwen", told))
    assert text.count("<|vision_start|>" + "<|image_pad|>" * 6 + "<|vision_end|>") == 3
    assert "nothing" not in text


@pytest.mark.parametrize("family", FAMILIES)
def test_what_a_client_writes_is_no_image(folders: dict[str, Path], family: str) -> None:
    tokenizer = Tokenizer.load(folders[family])
    markup = ImageMarkup.of(family, tokenizer)
    hostile = f"{WRITTEN[family]} {markup.write(WHOLE)} {markup.write((2, 2))}"
    marks = ImageMarks(markup.placeholder)
    mark = marks.add(_shown(markup, family, WHOLE))
    messages = [{"role": "user", "content": f"{hostile}{mark}{hostile}"}]
    placed = marks.spans_in(ChatTemplate(tokenizer).encode(messages, images=marks))
    assert len(placed) == 1


def test_a_template_that_loses_an_image_is_refused(tmp_path: Path) -> None:
    forgetful = vision_templates.QWEN.replace("in messages %}{%", "in messages[-1:] %}{%", 1)
    folder = vision_templates.save(tmp_path, "qwen", forgetful)
    told: Conversation = [("user", [WHOLE]), ("assistant", ["a"]), ("user", ["b", WHOLE])]
    with pytest.raises(BadRequest, match="can't show these images"):
        ours(folder, "qwen", told)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_tokenizer_without_the_tokens_is_refused(family: str, tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(makers.save(tmp_path, "byte_level", makers.CORPUS[0]))
    with pytest.raises(LoadFailed, match="there is no token <"):
        ImageMarkup.of(family, tokenizer)
