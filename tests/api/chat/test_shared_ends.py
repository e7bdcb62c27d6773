"""Where checkpoints are wanted: at the borders that later requests will really repeat."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from omlx_server.api.chat.shared_ends import shared_ends, strips_reasoning
from omlx_server.core.blocks.keys import shared
from omlx_server.errors import BadRequest
from omlx_server.text.templates.template import ChatTemplate
from omlx_server.text.tokenizer import Tokenizer
from tests.api.harness import Json, ServerProcess, serving, text_of
from tests.text import chat_templates, makers
from tests.tiny_models import save_tiny

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
STRIPPING = CHATML.replace("{{ m['content'] }}", "{{ m['content'].split('</think>')[-1] }}")
NEEDS_USER = (
    "{% if messages[-1]['role'] != 'user' %}{{ raise_exception('no') }}{% endif %}" + CHATML
)
# Qwen 3.5, Nemotron Nano 2, QwQ: the prompt ends with the start of a thought, or with an empty one,
# and past answers are shown without theirs.
OPENING = STRIPPING.replace(
    "<|im_start|>assistant\n{% endif %}",
    "<|im_start|>assistant\n{% if enable_thinking is defined and not enable_thinking %}"
    "<think>\n\n</think>\n\n{% else %}<think>\n{% endif %}{% endif %}",
)
TEMPLATES = {
    "chatml": CHATML,
    "stripping": STRIPPING,
    "opening": OPENING,
    "tools": chat_templates.TOOLS,
    "trimming": chat_templates.TRIMMING,
}

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


@pytest.mark.parametrize("kwargs", [{}, {"enable_thinking": False}], ids=["thinks", "does-not"])
@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
def test_the_next_turn_finds_all_that_it_repeats(
    tmp_path: Path, template: str, kwargs: Json
) -> None:
    """Whatever the prompt ends with: there is a checkpoint where the next turn leaves it."""
    _, chat = loaded(tmp_path, template)
    encode = partial(chat.encode, kwargs=kwargs)
    for told in ([TURNS[0]], [SYSTEM, TURNS[0]], [SYSTEM, *TURNS]):
        tokens = encode(told)
        answer = {"role": "assistant", "content": "It is sunny."}
        repeated = shared(tokens, encode([*told, answer, {"role": "user", "content": "Thanks."}]))
        strips = strips_reasoning(chat.render)
        ends = [*shared_ends(told, tokens, encode, strips=strips), len(tokens) - 1]
        assert max(end for end in ends if end <= repeated) >= min(repeated, len(tokens) - 1)


@pytest.mark.parametrize(("template", "strips"), [(CHATML, False), (STRIPPING, True)])
def test_a_template_that_strips_reasoning_is_known(
    tmp_path: Path, template: str, strips: bool
) -> None:
    _, chat = loaded(tmp_path, template)
    assert strips_reasoning(chat.render) is strips


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Two models with recurrent layers: the template of `hybrid` strips reasoning, that of
    `opening` also ends a prompt within a thought."""
    models = tmp_path_factory.mktemp("hybrid")
    for name, template in (("hybrid", STRIPPING), ("opening", OPENING)):
        path = makers.save(models / name, "byte_level", template)
        save_tiny(path, "qwen3_next", vocab_size=makers.FAMILIES["byte_level"]().get_vocab_size())
    with serving("hybrid", tmp_path_factory.mktemp("log"), f"models.dirs={models}") as server:
        yield server


OPENED = {"<think>": {}, "<think></think>": {"enable_thinking": False}}


@pytest.mark.parametrize("opened", OPENED)
def test_a_thought_that_the_prompt_opens_is_not_what_is_kept(
    hybrid: ServerProcess, opened: str
) -> None:
    messages: list[Json] = [{"role": "user", "content": f"{opened} Quick brown fox! " * 8}]
    fixed = {"model": "opening", "temperature": 0, "max_tokens": 8}
    body = {**fixed, "chat_template_kwargs": OPENED[opened], "messages": messages}
    first: Json = hybrid.post(body).json()
    answer = {"role": "assistant", "content": "It is 21 degrees."}
    body["messages"] = [*messages, answer, {"role": "user", "content": "And tomorrow?"}]
    again = hybrid.post(body).json()["usage"]
    repeated = first["usage"]["prompt_tokens"] - len("<think>\n\n</think>\n\n")
    assert again["prompt_tokens_details"]["cached_tokens"] >= repeated


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
