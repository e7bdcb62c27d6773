"""Random answers in channels, as gpt-oss writes them, and what they mean."""

import json
import random
from dataclasses import dataclass, field
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from omlx_server.text.reasoning.style import HARMONY
from omlx_server.text.tokenizer import Tokenizer

SPECIALS = (*HARMONY.channels, "<|return|>")
ENDS = ("<|return|>", "<|call|>")
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 4}, "days": {"enum": [1, 2, 3]}},
    "required": ["city", "days"],
    "additionalProperties": False,
}


def tool(name: str, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": SCHEMA, **more}}


TOOLS = (tool("f"), tool("get_weather"))

_WORDS = ("Hm.", " So,", " the", " sky", "\n", " is", " blue", " {", '"', " to=f", " final", " é")


def with_channels(backend: Backend) -> Backend:
    copied = Backend.from_str(backend.to_str())
    copied.add_special_tokens([AddedToken(text, special=True) for text in SPECIALS])
    return copied


def tokenizer_of(source: Tokenizer) -> Tokenizer:
    backend = with_channels(source._backend)
    ends = frozenset(filter(None, map(backend.token_to_id, ENDS)))
    return Tokenizer(backend, eos_ids=ends, chat_templates={}, template_variables={})


@dataclass(slots=True)
class Written:
    """An answer: its `text` with all markers, and what it means to a client with tools."""

    text: str = ""
    thought: str = ""
    said: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)


def written(seed: int) -> Written:
    """Messages for all readers in any order, then at most one more that ends the answer."""
    chance = random.Random(seed)
    answer = Written()
    for number in range(chance.randrange(1, 5)):
        answer.text += "<|start|>assistant" if number else ""
        kind = chance.choice((_thought, _thought, _preamble, _call, _final, _tool_of_its_own))
        kind(chance, answer)
    return answer


def _thought(chance: random.Random, answer: Written) -> None:
    body = _prose(chance)
    answer.text += f"<|channel|>analysis<|message|>{body}<|end|>"
    answer.thought += body


def _tool_of_its_own(chance: random.Random, answer: Written) -> None:
    """A tool that the model was trained with and nobody has given to it."""
    body = "print(1)"
    answer.text += f"<|channel|>analysis to=python code<|message|>{body}<|call|>"
    answer.thought += body


def _preamble(chance: random.Random, answer: Written) -> None:
    body = _prose(chance)
    answer.text += f"<|channel|>commentary<|message|>{body}<|end|>"
    answer.said += body


def _final(chance: random.Random, answer: Written) -> None:
    header = chance.choice(
        (
            "<|channel|>final",
            "<|channel|>final <|constrain|>json",
            "<|channel|>commentary to=assistant<|channel|>final",
            " to=user<|channel|>final",
        )
    )
    body = _prose(chance)
    answer.text += f"{header}<|message|>{body}{chance.choice(('<|return|>', '<|end|>'))}"
    answer.said += body


def _call(chance: random.Random, answer: Written) -> None:
    name = chance.choice(("f", "get_weather"))
    to = f"to=functions.{name}"
    header = chance.choice(
        (
            f"<|channel|>commentary {to} <|constrain|>json",
            f"<|channel|>commentary {to}<|constrain|>json",
            f"<|channel|>commentary {to} json",
            f"<|channel|>analysis {to} code",
            f" {to}<|channel|>commentary",
            f" {to}<|channel|>analysis <|constrain|>json",
            f"<|channel|>commentary to={name}",
        )
    )
    body = json.dumps({"city": _prose(chance), "days": chance.choice((1, 2**60))})
    body = chance.choice((body, body, ""))
    space = chance.choice(("", "\n"))
    answer.text += f"{header}<|message|>{space}{body}{space}<|call|>"
    answer.calls.append((name, body or "{}"))


def _prose(chance: random.Random) -> str:
    return "".join(chance.choices(_WORDS, k=chance.randrange(1, 8)))
