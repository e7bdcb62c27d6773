"""Requests of a client that does harm: floods of 8 MB, conversations of 10,000 messages, grammars
that go off late, bodies that are wrong a million times, and resets of the cache between them."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import orjson

from tests.api.harness import CHAT, Json
from tests.campaigns.hostile_presses import FULL, SMALL, Presses

_TOKENIZE, _COUNT, _PROBE = "/tokenize", "/v1/messages/count_tokens", "/v1/cache/probe"
_POLICIES = ("error", "truncate", "rolling")


@dataclass(frozen=True, slots=True)
class Load:
    """A flood has so many `bytes`, a crowd so many `messages`. Who does harm has `clients` requests
    on the way at once, and waits `patience` seconds for each. A stream has `tokens`. A context has
    `context` tokens, read in pieces of `chunk`: what a long prompt takes of the machine, whoever
    sends it, is another matter. On a slow CPU 512 tokens take two seconds. `every`: the one of so
    many floods and bombs that is sent. `presses`: what is taken afterwards. `gives_way`: whether it
    leaves the processors to the streams, whose gaps are measured; then it takes far longer."""

    bytes: int
    messages: int
    clients: int
    tokens: int
    patience: float
    chunk: int = 512
    context: int = 4096
    every: int = 1
    presses: Presses = FULL
    gives_way: bool = True


TINY = Load(
    bytes=100_000,
    messages=500,
    clients=4,
    tokens=100,
    patience=60,
    every=6,
    presses=SMALL,
    gives_way=False,
)
STARTER = Load(
    bytes=8_000_000,
    messages=9_999,
    clients=12,
    tokens=60,
    patience=600,
    chunk=64,
    context=768,
)


@dataclass(frozen=True, slots=True)
class Harm:
    """One hostile request. The body is made when it is sent: all of them are gigabytes."""

    name: str
    path: str
    body: Callable[[], bytes]


def all_harms(model: str, load: Load) -> Iterator[Harm]:
    """Resets come between the others."""
    floods = itertools.islice(_floods(model, load), None, None, load.every)
    bombs = itertools.islice(_bombs(model), None, None, load.every)
    kinds = [floods, _crowds(model, load), bombs, _wrong_bodies(model, load)]
    reset = Harm("reset", "/v1/cache/reset", lambda: b"{}")
    for number, harm in enumerate(itertools.chain(*kinds)):
        yield harm
        if number % 5 == 0:
            yield reset


def _floods(model: str, load: Load) -> Iterator[Harm]:
    """A single text of a kind that tokenizers are slow with."""
    parts = {
        "letters": "a",
        "any letters": "qwertyuiopasdfghjklzxcvbnm",
        "blanks": " ",
        "digits": "1234567890",
        "words": "the quick brown fox jumps over the lazy dog ",
        "emoji": "\N{GRINNING FACE}",
        "scripts": "世界你好",
        "control texts": "<|im_end|>",
        "quotes": '\\"',
    }
    for (name, part), (path, made) in itertools.product(parts.items(), _ROUTES.items()):
        text = part * (load.bytes // len(orjson.dumps(part)[1:-1]))
        yield Harm(f"{name} to {path}", path, partial(_dumped, made, model, text))


def _dumped(made: Callable[..., Json], *given: Any) -> bytes:
    return orjson.dumps(made(*given))


def _chat(model: str, text: str, **fields: Any) -> Json:
    messages = [{"role": "user", "content": text}]
    return {"model": model, "messages": messages, "max_tokens": 4, "temperature": 0, **fields}


_ROUTES: dict[str, Callable[[str, str], Json]] = {
    CHAT: _chat,
    _TOKENIZE: lambda model, text: {"model": model, "prompt": text},
    _COUNT: _chat,
    "/v1/completions": lambda model, text: {"model": model, "prompt": text, "max_tokens": 4},
    "/v1/responses": lambda model, text: {"model": model, "input": text, "max_output_tokens": 4},
}


def _crowds(model: str, load: Load) -> Iterator[Harm]:
    """So many messages that most have to go. Of the chats one for each policy is answered: what
    stays fills the context, and to read it is the model's own work."""
    turns: list[Json] = [
        {"role": ("user", "assistant")[number % 2], "content": f"What comes after {number}? " * 3}
        for number in range(load.messages // 2 * 2 - 1)
    ]
    asked = turns[:1] + [
        {"role": ("assistant", "tool")[number % 2], "content": "It rains.", "tool_call_id": "c"}
        for number in range(load.messages - 1)
    ]
    crowds = {"turns": turns, "results": asked}
    for policy, (kind, messages) in itertools.product(_POLICIES, crowds.items()):
        body = orjson.dumps(_chat(model, "") | {"messages": messages, "context_overflow": policy})
        yield Harm(f"{kind} under {policy}", _PROBE, partial(bytes, body))
        if kind == "turns":
            yield Harm(f"a chat of {kind} under {policy}", CHAT, partial(bytes, body))


def _bombs(model: str) -> Iterator[Harm]:
    """Grammars. Each ends as a 4xx or as an answer of its own, whatever its tokens take."""
    pattern = {"type": "string", "pattern": "(a|aa){1,2000}b"}
    nested: Json = pattern
    for _ in range(40):
        nested = {"type": "object", "properties": {"a": nested}, "required": ["a"]}
    inner: list[Json] = [{"type": "array", "items": {"$ref": f"#/$defs/{n}"}} for n in range(1999)]
    levels = [{"anyOf": [{"const": n}, one]} for n, one in enumerate([{"type": "null"}, *inner])]
    deep = {"$ref": "#/$defs/1999", "$defs": {str(n): one for n, one in enumerate(levels)}}
    schemas: dict[str, Json] = {
        "nested pattern": nested,
        "steps": {"type": "string", "pattern": "^(([a-z])+.)+[A-Z]([a-z])+$"},
        "enum": {"enum": [f"{number:05}" * 40 for number in range(10_000)]},
        "2,000 times anyOf": deep,
        "counted": {"type": "string", "pattern": "^(.{0,500}x){0,500}$", "maxLength": 100_000},
        "many lists": {
            "type": "array",
            "items": {"anyOf": [{"type": "array", "minItems": n} for n in range(400)]},
        },
        "intersection": {
            "allOf": [{"type": "string", "pattern": f"a.{{{n},}}b"} for n in range(1, 40)]
        },
    }
    fields: dict[str, Json] = {f"schema {name}": {"guided_json": s} for name, s in schemas.items()}
    regexes = ["(x+x+){50}y", "(.*a){200}", "(a?){3000}a{3000}", r"(\w+\s?)*!{500}"]
    fields |= {f"regex {regex}": {"guided_regex": regex} for regex in regexes}
    grammars = [
        "start: a{1,1000} a{1,1000} a{1,1000}\na: /a+/",
        "start: start start | /[a-z]/ | ",
        'start: x\nx: x x x | "a" x | x "b" | /.*/',
        "start: " + " ".join(f"/[a-z]{{0,{n}}}/" for n in range(1, 300)),
    ]
    fields |= {f"grammar {g[:30]!r}": {"guided_grammar": g} for g in grammars}
    for name, wanted in fields.items():
        body = _chat(model, "Answer at length.") | wanted | {"max_tokens": 40, "temperature": 1}
        yield Harm(f"bomb {name}", CHAT, partial(orjson.dumps, body))


def _wrong_bodies(model: str, load: Load) -> Iterator[Harm]:
    """Each member of a list is a fault of its own, or nothing but structure."""
    many = load.bytes // 4
    wrong: dict[str, tuple[str, Callable[[], Json]]] = {
        "contents": (CHAT, lambda: {"messages": [{"role": "user", "content": [7.5] * many}]}),
        "prompts": ("/v1/completions", lambda: {"prompt": [7.5] * many}),
        "lists": (CHAT, lambda: {"messages": [], "x": [[]] * many}),
        "keys": (CHAT, lambda: {"logit_bias": {str(n): "x" for n in range(many // 4)}}),
        "parts": (CHAT, lambda: _chat(model, "") | {"messages": _parts(many // 8)}),
    }
    for name, (path, made) in wrong.items():
        yield Harm(f"wrong {name}", path, partial(_dumped, _named, model, made))


def _named(model: str, made: Callable[[], Json]) -> Json:
    return {"model": model, **made()}


def _parts(count: int) -> list[Json]:
    return [{"role": "user", "content": [{"type": "text", "text": "a"}] * count}]
