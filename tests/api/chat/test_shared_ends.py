"""Where checkpoints are wanted: at the borders that later requests will really repeat."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from omlx_server.api.chat.shared_ends import shared_ends, strips_reasoning
from omlx_server.errors import BadRequest
from omlx_server.text.templates.template import ChatTemplate
from omlx_server.text.tokenizer import Tokenizer
from tests.api.harness import Json, ServerProcess, serving, text_of
from tests.text import makers
from tests.tiny_models import save_tiny

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
STRIPPING = CHATML.replace("{{ m['content'] }}", "{{ m['content'].split('</think>')[-1] }}")
NEEDS_USER = (
    "{% if messages[-1]['role'] != 'user' %}{{ raise_exception('no') }}{% endif %}" + CHATML
)

SYSTEM = {"role": "system", "content": "You are a helpful assistant."}
TURNS = [
    {"role": "user", "content": "Hello there!"},
    {"role": "assistant", "content": "Hello."},
    {"role": "user", "content": "What is the weather?"},
]


def loaded(folder: Path, template: str) -> tuple[Tokenizer, ChatTemplate]:
    tokenizer = Tokenizer.load(makers.save(folder, "byte_level", template))
    return tokenizer, ChatTemplate(tokenizer)


@pytest.mark.parametrize("template", [CHATML, NEEDS_USER, STRIPPING])
def test_marks_stand_after_the_system_prompt_and_before_the_last_turn(
    tmp_path: Path, template: str
) -> None:
    tokenizer, chat = loaded(tmp_path, template)
    tokens = chat.encode([SYSTEM, *TURNS])
    ends = shared_ends([SYSTEM, *TURNS], tokens, chat.encode)
    header = "<|im_start|>user\n"
    system = f"<|im_start|>system\n{SYSTEM['content']}<|im_end|>\n{header}"
    turns = system + "Hello there!<|im_end|>\n<|im_start|>assistant\nHello.<|im_end|>\n" + header
    assert ends == (len(tokenizer.encode(system)), len(tokenizer.encode(turns)))


def test_a_first_question_is_marked_after_its_system_prompt_only(tmp_path: Path) -> None:
    _, chat = loaded(tmp_path, CHATML)
    messages = [SYSTEM, TURNS[0]]
    assert len(shared_ends(messages, chat.encode(messages), chat.encode)) == 1


def test_a_template_that_refuses_such_a_conversation_gives_no_mark() -> None:
    def refuses(_: Any) -> list[int]:
        raise BadRequest("no")

    assert shared_ends([SYSTEM, *TURNS], [1, 2, 3], refuses) == ()


@pytest.mark.parametrize(("template", "strips"), [(CHATML, False), (STRIPPING, True)])
def test_a_template_that_strips_reasoning_is_known(
    tmp_path: Path, template: str, strips: bool
) -> None:
    _, chat = loaded(tmp_path, template)
    assert strips_reasoning(chat.render) is strips


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A model with recurrent layers whose template strips reasoning."""
    models = tmp_path_factory.mktemp("hybrid")
    path = makers.save(models / "hybrid", "byte_level", STRIPPING)
    save_tiny(path, "qwen3_next", vocab_size=makers.FAMILIES["byte_level"]().get_vocab_size())
    with serving("hybrid", tmp_path_factory.mktemp("log"), f"models.dirs={models}") as server:
        yield server


def test_the_part_that_comes_back_is_what_is_kept(hybrid: ServerProcess) -> None:
    """The answer comes back without its thoughts, so its own state would never be met again."""
    messages: list[Json] = [{"role": "user", "content": "Hello there, quick brown fox! " * 8}]

    def ask() -> Json:
        body = {"model": "hybrid", "messages": messages, "temperature": 0, "max_tokens": 24}
        answer: Json = hybrid.post(body).json()
        return answer

    first = ask()
    thoughts = f"<think>{text_of(first)}</think>"
    messages += [
        {"role": "assistant", "content": f"{thoughts}It is 21 degrees."},
        {"role": "user", "content": "And tomorrow?"},
    ]
    again = ask()["usage"]
    kept = first["usage"]["prompt_tokens"] - 1
    assert again["prompt_tokens_details"]["cached_tokens"] == kept
